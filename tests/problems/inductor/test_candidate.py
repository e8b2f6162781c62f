"""What torch.compile generates, as candidates: they are what a search may start from, and right at other sizes."""

import re
from pathlib import Path

import pytest

from mctskernel.api import evaluate_kernels
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task_file import load_task, write_new_task
from mctskernel.edits.proposer import RuleProposer
from mctskernel.edits.triton.tuning import block_sizes
from mctskernel.problems.inductor.generated import InductorError
from mctskernel.tasks.check import check_task
from tests.problems.inductor import recorded

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

from mctskernel.problems.from_torch import create_task_from_torch
from mctskernel.problems.torch_task import TorchTask, task_toml
from mctskernel.profiling.source_rules import rejection

SHAPES = {
    "add_rmsnorm": ({"rows": 3, "cols": 131}, {"rows": 1, "cols": 1}),
    "linear_gelu": ({"rows": 3, "cols": 35, "k": 37}, {"rows": 1, "cols": 1, "k": 1}),
}

REFERENCE = """
from pathlib import Path

from mctskernel.problems.torch_reference import call_in_numpy


def reference({names}):
    return call_in_numpy(str(Path(__file__).with_name("function.py")), "{name}", {names})
"""


@pytest.mark.parametrize("name", recorded.DIMENSIONS)
def test_is_a_candidate_that_the_guards_let_in(name: str) -> None:
    kernel = Kernel(recorded.candidate(name), Language.TRITON)
    assert rejection(kernel) == ""
    launches = plan_of(kernel).launches
    assert len(launches) == len(recorded.module(name).calls)
    for launch in launches:
        assert launch.triton is not None
        assert launch.triton.num_warps == recorded.CONFIG.num_warps
    for symbol in (*recorded.DIMENSIONS[name], "rnumel", "RBLOCK", "rindex"):
        assert symbol not in kernel.source, (
            "sizes have the dimensions' names, and what nobody reads is left out"
        )


def written_task(folder: Path, name: str) -> Path:
    inputs = recorded.INPUTS[name]
    task = TorchTask(
        name,
        name,
        lambda: None,
        inputs,
        recorded.OUTPUTS[name],
        search=SHAPES[name][:1],
        verify=SHAPES[name][:1],
        held_out=SHAPES[name][1:],
        tolerance={"relative": 0.01} if name == "add_rmsnorm" else {},
        reference=REFERENCE.format(name=name, names=", ".join(each.name for each in inputs)),
    )
    files = {
        "task.toml": task_toml(task),
        "reference.py": task.reference,
        "function.py": (recorded.FOLDER / "functions.py").read_text(),
        "kernel.py": recorded.candidate(name),
    }
    write_new_task(folder / name, files)
    return folder / name


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_is_right_at_awkward_shapes(tmp_path: Path, name: str) -> None:
    """On the emulator, with blocks that are small enough for it to be quick."""
    report = check_task(written_task(tmp_path, name))
    assert report.ok, report.problems


def test_block_sizes_of_a_template_can_be_changed(tmp_path: Path) -> None:
    task = load_task(written_task(tmp_path, "linear_gelu"), Language.TRITON)
    request = ProposalRequest(task, task.starting_kernel, Evaluation(Outcome.OK, Source.MODELLED))
    edits = RuleProposer(triton_rules=(block_sizes,)).propose(request).edits
    titles = {edit.title for edit in edits}
    assert {"BLOCK_M 32 -> 64", "BLOCK_N 32 -> 64", "BLOCK_K 16 -> 32"} <= titles


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("softmax", "triton_helpers.maximum", "triton_helpers.magic", "calls the helper 'magic'"),
        ("cumsum", "'Grid1D'", "'SplitScanGrid'", "launch plans don't support: SplitScanGrid"),
    ],
)
def test_what_no_candidate_can_have_is_refused(name: str, old: str, new: str, said: str) -> None:
    source = recorded.text(name)
    assert old in source
    with pytest.raises(InductorError, match=said):
        recorded.candidate(name, source.replace(old, new))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # those of PyTorch's own imports
def test_is_right_on_a_gpu_with_other_blocks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(recorded.FOLDER)
    shapes = ("rows=256xk=128", "cols=192xk=128", "cols=192")
    made = create_task_from_torch(
        tmp_path / "task", "functions:linear_gelu", shapes, ("fp32",), Language.TRITON
    )
    source = made.files["kernel.py"]
    assert made.notes == ()
    assert "tl.dot(" in source
    others = [
        re.sub(rf"^{block} = \d+$", f"{block} = 16", source, flags=re.MULTILINE) for block in recorded.BLOCKS
    ]
    kernels = [Kernel(each, Language.TRITON) for each in (source, *others)]
    found = evaluate_kernels(tmp_path / "task", kernels, device="gpu")
    assert [(each.outcome, each.message) for each in found] == [(Outcome.OK, "")] * len(kernels)
