"""`mctskernel generate` as a user types it, against a server that writes kernels."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree

import pytest

from mctskernel.cli.errors import INTERRUPTED, NO_KERNEL, SUCCESS, USAGE
from mctskernel.core.task import UNVERIFIED_REFERENCE
from mctskernel.run import open_run, read_manifest
from mctskernel.tasks.generation import TRANSCRIPT
from tests.cli.command import mctskernel
from tests.edits.llm.loopback import Handler, fails, hangs, replies, serving
from tests.edits.llm.scripted import a_reply, an_edit
from tests.generated import KERNEL, REFERENCE, TASK_FILE, WANTED, a_kernel, a_statement, files

ON_MODEL = ("--device", "model", "--workers", "1", "--tries", "3", "--expert", "memory")
SEARCHED = ("--budget", "4", "--edits-per-call", "1", "--calls", "1")


def author(handler: Handler) -> None:
    """States the task, writes its kernel, and then makes its blocks larger."""
    prompt = handler.server.received[-1].body["messages"][-1]["content"]
    if "You specify what a GPU kernel has to compute" in prompt:
        replies(a_statement())(handler)
    elif "There is no kernel to edit" in prompt:
        replies(a_kernel(KERNEL))(handler)
    else:
        size = 2 ** (5 + len(handler.server.received) % 3)
        replies(a_reply(an_edit(f"Blocks of {size}", ("#define BLOCK 64\n", f"#define BLOCK {size}\n"))))(
            handler
        )


@pytest.fixture(scope="module")
def unverified_reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a task and a run that were made from words alone, and what the command said."""
    folder = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patched, serving(author) as server:
        patched.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
        asked = ("--model", "scripted", "--base-url", server.url)
        out = ("--out-task", folder / "task", "--out", folder / "run")
        result = mctskernel("generate", WANTED, "--unverified-reference", *asked, *ON_MODEL, *SEARCHED, *out)
    assert result.exit_code == SUCCESS, result.output
    return folder, result.output


@pytest.mark.slow
def test_from_words_to_a_searched_kernel(unverified_reference: tuple[Path, str]) -> None:
    folder, said = unverified_reference
    assert files(folder / "task") == {"task.toml", "reference.py", "kernel.cu", TRANSCRIPT}
    assert (folder / "run" / "best" / "kernel.cu").is_file()
    assert read_manifest(open_run(folder / "run")).configuration.proposer == "mixed"
    assert "def reference(x)" in said
    assert "memory: verified" in said
    assert b"sk-secret" not in b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_unanchored_is_said_wherever_a_speedup_is_told(unverified_reference: tuple[Path, str]) -> None:
    folder, said = unverified_reference
    run = folder / "run"
    flat = " ".join(said.split())
    told = re.findall(r"[0-9.]x (?:modelled|over|\()[^:;]*(?:; \w+)?", flat)
    assert len(told) > 2, "the progress and the summary"
    assert all("unverified" in each for each in told), told
    assert "Unverified reference: a language model wrote it, and it was not checked" in flat, "the summary"
    assert json.loads((run / "run.json").read_text())["caveats"] == [UNVERIFIED_REFERENCE]
    assert json.loads((run / "best" / "answer.json").read_text())["caveats"] == [UNVERIFIED_REFERENCE]
    for words in (("show", run), ("show", run, "0"), ("best", run)):
        assert "nverified" in mctskernel(*words).output, words
    exported = mctskernel("export", run).output
    assert exported.count("unverified reference") == 4, "each evaluated node"
    for kind in ("sft", "preference", "rl"):
        for line in mctskernel("export", run, "--format", kind).output.splitlines():
            assert json.loads(line)["provenance"]["caveats"] == [UNVERIFIED_REFERENCE]
    assert mctskernel("export", run, "--format", "rl").output


@pytest.fixture
def given(tmp_path: Path) -> tuple[str | Path, ...]:
    """Options that leave nothing to state."""
    (tmp_path / "sums.py").write_text(REFERENCE)
    (tmp_path / "sums.toml").write_text(TASK_FILE)
    return ("--reference", tmp_path / "sums.py", "--task-toml", tmp_path / "sums.toml")


@pytest.mark.slow
def test_a_key_that_is_refused_is_the_users_to_mend(
    tmp_path: Path, given: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serving(fails(401)) as server:
        asked = ("--model", "scripted", "--base-url", server.url, "--out-task", tmp_path / "task")
        result = mctskernel("generate", WANTED, *given, *asked, *ON_MODEL)
    assert result.exit_code == USAGE
    assert "refuses the key" in result.stderr


@pytest.mark.slow
def test_a_tasks_own_kernel_stays_and_files_may_answer_for_a_model(tmp_path: Path, small_task: Path) -> None:
    task = Path(copytree(small_task, tmp_path / "task"))
    own = (task / "kernel.cu").read_text()
    asked = ("--model", "somebody", "--base-url", f"file:{tmp_path / 'replies'}", "--no-search")
    result = mctskernel("generate", task, *asked, *ON_MODEL)
    assert result.exit_code == NO_KERNEL
    (prompt,) = (tmp_path / "replies").iterdir()
    assert f"Answer {prompt} in {prompt.stem}.reply.md" in result.stderr
    assert "def reference" in prompt.read_text()
    faster = own.replace("#define BLOCK 64", "#define BLOCK 256")
    prompt.with_suffix(".reply.md").write_text(f"## Larger blocks\n\n```cuda\n{faster}```\n")
    result = mctskernel("generate", task, *asked, *ON_MODEL)
    assert result.exit_code == SUCCESS, result.output
    assert (task / "kernel.cu").read_text() == own
    assert (task / "start_memory.cu").read_text() == faster
    assert mctskernel("generate", task, *asked, "--task-toml", task / "task.toml").exit_code == USAGE


@pytest.mark.slow
def test_ctrl_c_ends_a_generation_at_once(tmp_path: Path, given: tuple[str | Path, ...]) -> None:
    with serving(hangs) as server:
        words = ("--base-url", server.url, "--out-task", tmp_path / "task", *given, *ON_MODEL)
        command = [sys.executable, "-m", "mctskernel", "generate", WANTED, "--model", "m", *map(str, words)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while not server.received:
                    assert process.poll() is None, process.communicate()[1]
                    time.sleep(0.01)
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=120)
            finally:
                process.kill()
    assert process.returncode == INTERRUPTED
    assert complaints.startswith("Interrupted.")
    assert "Traceback" not in complaints
    assert "kernel.cu" not in files(tmp_path / "task")
