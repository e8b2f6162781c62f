"""`mctskernel show --ncu` as a user types it, with an `ncu` that plays its part."""

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cli.command import mctskernel, searched
from tests.conftest import KERNEL

pytestmark = pytest.mark.slow

FAKE_NCU = f"""\
#!{sys.executable}
import os, pathlib, sys
folder = pathlib.Path(__file__).parent
if "--import" in sys.argv:
    print((folder / "details").read_text(), end="")
    sys.exit(0)
(folder / "arguments").write_text("\\n".join(sys.argv[1:]))
(folder / "environ").write_text(repr(dict(os.environ)))
print((folder / "output").read_text(), flush=True)
if (folder / "succeed").exists():
    report = pathlib.Path(sys.argv[sys.argv.index("--export") + 1])
    report.with_name(report.name + ".ncu-rep").write_bytes(b"report")
else:
    sys.exit(1)
"""


profile = partial(mctskernel, "show", "--ncu")


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(small_task, tmp_path_factory.mktemp("searched") / "run", 2)


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an `ncu` that succeeds; its files say what it prints."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(FAKE_NCU)
    (folder / "ncu").chmod(0o755)
    (folder / "details").write_text("OPT   This kernel has uncoalesced global accesses.\n")
    (folder / "output").write_text('==PROF== Profiling "twice": 0%....50%....100% - 38 passes\n')
    (folder / "succeed").touch()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-do-not-tell")
    monkeypatch.setattr("mctskernel.report.node_profile.describe_gpu", lambda: "a GPU")
    return folder


def test_the_report_is_kept_and_its_findings_are_printed(run: Path, ncu: Path) -> None:
    result = profile(run, 0)
    assert result.exit_code == 0, result.output
    assert (run / "profiles" / "0.ncu-rep").read_bytes() == b"report"
    assert (run / "profiles" / "0.cu").read_text() == KERNEL
    printed = " ".join(result.stdout.split())
    assert "This kernel has uncoalesced global accesses" in printed
    arguments = (ncu / "arguments").read_text().splitlines()
    assert "sk-do-not-tell" not in (ncu / "environ").read_text()
    assert arguments[:2] == ["--set", "full"]
    assert arguments[arguments.index("--clock-control") + 1] == "none"
    assert arguments[-4:] == [str(run / "task"), str(run / "profiles" / "0.cu"), "0", "confined"]


def test_forbidden_counters_are_a_sentence_with_the_fix(run: Path, ncu: Path) -> None:
    (ncu / "succeed").unlink()
    (ncu / "output").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    result = profile(run, 0)
    assert result.exit_code == 5
    assert "NVreg_RestrictProfilingToAdminUsers=0" in result.stderr


def test_an_ncu_that_works_in_a_free_process_alone_is_given_one(run: Path, ncu: Path) -> None:
    script = (ncu / "ncu").read_text()
    (ncu / "ncu").write_text(script.replace(").exists():", ").exists() and sys.argv[-1] == 'free':"))
    result = profile(run, 0)
    assert result.exit_code == 0, result.output
    assert "ran in a free one" in " ".join(result.stderr.split())
    assert sorted(each.name for each in (run / "profiles").iterdir()) == ["0.cu", "0.ncu-rep"]


def test_no_kernel_gets_itself_a_free_process(run: Path, ncu: Path) -> None:
    """What fails while the starting kernel can be profiled is the kernel's own fault."""
    script = (ncu / "ncu").read_text()
    (ncu / "ncu").write_text(script.replace(").exists():", ").exists() and 'start.cu' in sys.argv[-3]:"))
    result = profile(run, 1)
    assert result.exit_code == 5
    assert "free" not in result.stderr
    assert "confined" in (ncu / "arguments").read_text()


def test_no_ncu_on_the_path_is_a_sentence(run: Path, ncu: Path) -> None:
    (ncu / "ncu").unlink()
    result = profile(run, 0)
    assert result.exit_code == 5
    assert "ncu is not on the PATH" in result.stderr
