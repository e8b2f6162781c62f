"""Generation from words: a scripted model writes, the model device judges."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import NoKernelError
from mctskernel.edits.llm.experts import EXPERTS
from mctskernel.edits.llm.model import Call, OpenModel
from mctskernel.tasks.drafting import Order
from mctskernel.tasks.generation import TRANSCRIPT, Effort, Generation, generate
from tests.generated import (
    COALESCED,
    HELD_OUT_WRONG,
    KERNEL,
    REFERENCE,
    TASK_FILE,
    UNDECLARED,
    WANTED,
    WITHOUT_LAST_COLUMN,
    a_kernel,
    a_statement,
    files,
    writer,
)

pytestmark = pytest.mark.slow  # kernels are built and judged in processes of their own

ALONE = Effort(experts=EXPERTS[:1], at_once=1)


def generated(
    folder: Path,
    model: OpenModel,
    effort: Effort = ALONE,
    *,
    reference: str = REFERENCE,
    task_file: str = TASK_FILE,
    language: Language = Language.CUDA,
    said: list[str] | None = None,
) -> Generation:
    order = Order(WANTED, folder, language, reference, task_file)
    spec = DeviceSpec("model", folder, architecture="H100", language=language)
    said = [] if said is None else said
    return generate(order, effort, model, spec, workers=1, say=said.append)


def purposes(calls: Sequence[Call]) -> list[tuple[str, str]]:
    return [(call.purpose.value, call.expert) for call in calls]


def test_a_kernel_that_is_right_at_once_is_the_start_of_a_task(tmp_path: Path) -> None:
    model = writer(a_kernel(KERNEL))
    made = generated(tmp_path / "task", model)
    assert purposes(model.calls) == [("generate", "memory")]
    assert made.task.starting_kernel.identity == Kernel(KERNEL).identity
    assert not made.task.unverified_reference
    assert files(tmp_path / "task") == {"task.toml", "reference.py", "kernel.cu", TRANSCRIPT}
    assert (tmp_path / "task" / "reference.py").read_text() == REFERENCE
    prompt = "\n".join(message.content for message in model.calls[0].messages)
    assert WANTED in prompt
    assert "x.sum(axis=1)" in prompt
    assert "cols = 40" not in prompt, "held-out shapes are not told"
    assert "cols=40" not in prompt
    assert str(tmp_path) not in prompt


@pytest.mark.parametrize(
    ("broken", "told"),
    [(UNDECLARED, '"total" is undefined'), (WITHOUT_LAST_COLUMN, "'out' is wrong")],
    ids=["build error", "wrong result"],
)
def test_what_fails_is_sent_back_with_what_was_found(tmp_path: Path, broken: str, told: str) -> None:
    model = writer(a_kernel(broken), a_kernel(KERNEL))
    made = generated(tmp_path / "task", model)
    assert [purpose for purpose, _ in purposes(model.calls)] == ["generate", "repair"]
    assert told in model.calls[1].messages[-1].content
    assert made.task.starting_kernel.identity == Kernel(KERNEL).identity


def test_the_fastest_expert_starts_the_task_and_the_others_stay_beside_it(tmp_path: Path) -> None:
    sources = {"memory": KERNEL, "parallelism": COALESCED, "instructions": COALESCED}
    model = writer(lambda call: a_kernel(sources[call.expert]))
    said: list[str] = []
    made = generated(tmp_path / "task", model, Effort(experts=EXPERTS[:3]), said=said)
    assert [each.expert for each in made.kernels] == ["parallelism", "memory"], "the same kernel counts once"
    assert made.kernels[0].seconds < made.kernels[1].seconds
    assert Kernel((tmp_path / "task" / "kernel.cu").read_text()).identity == Kernel(COALESCED).identity
    assert Kernel((tmp_path / "task" / "start_memory.cu").read_text()).identity == Kernel(KERNEL).identity
    assert len([line for line in said if "verified" in line and "modelled" in line]) == 3


def test_when_all_tries_are_spent_the_reasons_are_told_and_nothing_is_left_to_search(tmp_path: Path) -> None:
    model = writer(a_kernel(UNDECLARED))
    with pytest.raises(NoKernelError, match=r"after 3 tries\. memory: build error: .*total"):
        generated(tmp_path / "task", model, replace(ALONE, tries=3))
    assert "kernel.cu" not in files(tmp_path / "task")
    assert (tmp_path / "task" / TRANSCRIPT).read_text().count("\n") == len(model.calls)


def test_a_kernel_that_fails_the_last_gate_is_begun_anew_and_the_gate_isnt_told(tmp_path: Path) -> None:
    model = writer(a_kernel(HELD_OUT_WRONG), a_kernel(KERNEL))
    made = generated(tmp_path / "task", model)
    assert [purpose for purpose, _ in purposes(model.calls)] == ["generate", "generate"]
    again = model.calls[1].messages[-1].content
    assert "Already tried" in again
    assert "at held-out shapes" in again
    assert "40" not in again
    assert len(made.kernels) == 1


def test_without_a_reference_the_task_is_unanchored(tmp_path: Path) -> None:
    said: list[str] = []
    made = generated(
        tmp_path / "task", writer(a_statement(), a_kernel(KERNEL)), reference="", task_file="", said=said
    )
    assert made.task.unverified_reference
    assert tomllib.loads((tmp_path / "task" / "task.toml").read_text())["unverified_reference"] is True
    assert load_task(tmp_path / "task").unverified_reference
    assert any("def reference" in line for line in said), "what the model took the words for is shown"


@pytest.mark.parametrize(
    "reference",
    [
        "import subprocess\n\n\ndef reference(x):\n    subprocess.run(['touch', '{trap}'])\n    return x.sum(axis=1)\n",
        "open('{trap}', 'w').close()\n\n\ndef reference(x):\n    return x.sum(axis=1)\n",
        "def reference(x, y=open('{trap}', 'w').close()):\n    return x.sum(axis=1)\n",
        "def reference(x):\n    x.tofile('{trap}')\n    return x.sum(axis=1)\n",
    ],
)
def test_a_hostile_reference_is_contained_and_refused(tmp_path: Path, reference: str) -> None:
    trap = tmp_path / "trap"
    model = writer(a_statement(reference.replace("{trap}", str(trap))))
    with pytest.raises(
        NoKernelError,
        match=r"states no task that can be used: .*reference.py: .*(Permission|FileNotFound|OS)Error",
    ):
        generated(tmp_path / "task", model, reference="", task_file="")
    assert not trap.exists()
    assert len(model.calls) == 3
    assert "Error" in model.calls[1].messages[-1].content


HEADER = "unverified_reference = false\n"


@pytest.mark.parametrize(
    ("task_file", "sentence"),
    [
        (HEADER + TASK_FILE, "the key 'unverified_reference'"),
        ('kernel = "/etc/passwd"\n' + TASK_FILE, "the key 'kernel'"),
        ('space = "reference.py"\n' + TASK_FILE, "the key 'space'"),
        ("not toml", "not valid TOML"),
        (TASK_FILE.replace("rows = 256", "rows = 25600000000"), "larger than 4 GiB"),
        (TASK_FILE.replace("rows = 5,", "rows = 500000,"), "larger than 16 MiB"),
        (TASK_FILE.replace("{ rows = 1, cols = 1 }, ", "{ rows = 1, cols = 1 }, " * 99), "64 are enough"),
        ("", "no task file"),
    ],
)
def test_a_task_file_that_a_model_drafts_can_only_say_what_a_task_needs(
    tmp_path: Path, task_file: str, sentence: str
) -> None:
    trap = tmp_path / "trap"
    evil = f"open({str(trap)!r}, 'w').close()\n{REFERENCE}"
    for reference in (REFERENCE, evil):
        folder = tmp_path / f"task{len(reference)}"
        with pytest.raises(NoKernelError, match="states no task that can be used") as raised:
            generated(folder, writer(a_statement(reference, task_file)), reference="", task_file="")
        if reference == REFERENCE:
            assert sentence in str(raised.value)
    assert not trap.exists()


def test_a_users_task_file_cant_vouch_for_a_models_reference(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    evil = f"open({str(trap)!r}, 'w').close()\n{REFERENCE}"
    for statement in (evil, REFERENCE):
        with pytest.raises(NoKernelError, match=r"was checked|The reference"):
            generated(
                tmp_path / str(len(statement)),
                writer(a_statement(statement)),
                reference="",
                task_file=HEADER + TASK_FILE,
            )
    assert not trap.exists()


@pytest.mark.parametrize(
    "reply",
    [
        "[" * 3000,
        '{"reference": "def reference(x): return x.sum(axis=1)", "task": "' + "[" * 9000,
        '{"reference": 7, "task": ["a"]}',
        a_statement("\ud800\0", "\ud800\0"),
        "```python\nimport os\n```\n```toml\nx = 1\n```",
    ],
)
def test_whatever_a_statement_is_it_ends_in_a_sentence(tmp_path: Path, reply: str) -> None:
    with pytest.raises(NoKernelError, match="states no task"):
        generated(tmp_path / "task", writer(reply), reference="", task_file="")


def test_what_was_given_wrongly_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="reference"):
        generated(tmp_path / "a", writer(a_kernel(KERNEL)), reference="def reference(x):\n    return x\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(TaskError, match="already holds something"):
        generated(tmp_path / "b", writer(a_kernel(KERNEL)))
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"
