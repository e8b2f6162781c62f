"""What torch.compile generates, as candidates: they are what a search may start from, and right at other sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.problems.inductor.generated import InductorError
from mctskernel.tasks.check import check_task
from tests.problems.inductor import recorded

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

from mctskernel.problems.from_torch import create_task_from_torch
from mctskernel.profiling.source_rules import breach

pytestmark = pytest.mark.slow

SHAPES = {
    "softmax": (("64x192",), ("fp32",)),
    "cross_entropy": (("64x192", "64"), ("bf16", "int64")),
    "add_rmsnorm": (("64x192", "64x192", "192"), ("bf16",)),
    "bias_gelu": (("64x192", "192"), ("bf16",)),
    "cumsum": (("64x192",), ("fp32",)),
}


@pytest.mark.parametrize("name", recorded.LAUNCHES)
def test_is_a_candidate_that_the_guards_let_in(name: str) -> None:
    kernel = Kernel(recorded.candidate(name), Language.TRITON)
    assert breach(kernel) == ""
    (launch,) = plan_of(kernel).launches
    assert launch.triton is not None
    assert launch.triton.num_warps == recorded.LAUNCHES[name]["num_warps"]
    assert dict(kernel.macros) == recorded.LAUNCHES[name]["blocks"]
    words = set(re.findall(r"\w+", kernel.source))
    assert not words & {str(size) for size in recorded.sizes(name).values()}, "sizes are names"
    assert not words & {"rnumel", "RBLOCK", "rindex"}, "what nobody reads is left out"


@pytest.mark.parametrize("name", ["cross_entropy", "add_rmsnorm"])
def test_is_right_at_awkward_shapes(tmp_path: Path, name: str) -> None:
    """On the emulator, with blocks that are small enough for it to be quick."""
    folder = tmp_path / name
    shapes, dtypes = SHAPES[name]
    create_task_from_torch(
        folder, f"mctskernel.experiments.operators:{name}", shapes, dtypes, Language.TRITON
    )
    small = re.sub(r"^R0_BLOCK = \d+", "R0_BLOCK = 64", recorded.candidate(name), flags=re.MULTILINE)
    small = re.sub(r"num_warps = \d+", "num_warps = 2", small)
    (folder / "kernel.py").write_text(small)
    text = (folder / "task.toml").read_text()
    text = re.sub(r"verify = \[.*?\n\]", "verify = [{rows = 3, cols = 131}]", text, flags=re.DOTALL)
    text = re.sub(r"held_out = \[.*?\n\]", "held_out = [{rows = 1, cols = 1}]", text, flags=re.DOTALL)
    (folder / "task.toml").write_text(text)
    report = check_task(folder)
    assert report.ok, report.problems


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "softmax",
            "triton_helpers.online_softmax_combine",
            "triton_helpers.magic",
            "calls the helper 'magic'",
        ),
        ("cumsum", "'Grid1D'", "'SplitScanGrid'", "launch plans don't support: SplitScanGrid"),
    ],
)
def test_what_no_candidate_can_have_is_refused(name: str, old: str, new: str, said: str) -> None:
    with pytest.raises(InductorError, match=said):
        recorded.candidate(name, recorded.text(name).replace(old, new))
