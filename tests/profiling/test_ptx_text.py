import math
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.ptx_text import variable_bytes
from mctskernel.profiling.stages import Stages
from tests import hopper_kernels


@pytest.mark.parametrize(
    ("ptx", "nbytes"),
    [
        (".global .align 1 .b8 huge[68719476736];", 64 << 30),
        (".const .align 16 .v4 .f32 a[2][3], b[0x10];", 16 * 6 + 16 * 16),
        (".global .b64 a[] = {1, 2, {3}}, b<5>;", 8 + 40),
        (".global .b8 hidden[1 << 36];", math.inf),
        ("/* .global .b8 a[99]; */ ld.global.u32 %r1, [%rd2+4]; // .global .b8 b[99];", 0),
    ],
)
def test_declared_variables_are_added_up(ptx: str, nbytes: float) -> None:
    assert variable_bytes(ptx) == nbytes


@pytest.mark.parametrize(
    "variable", ["__device__ char huge[64ull << 30];", "__device__ float one[150000000], other[150000000];"]
)
def test_device_variables_of_more_than_a_gibibyte_are_refused(variable: str) -> None:
    task = load_task(Path(mctskernel.tasks.builtin.__file__).parent / "softmax")
    kernel = Kernel(f"{task.starting_kernel.source}\n{variable}", task.starting_kernel.language)
    with pytest.raises(RefusedError, match="more than 1 GiB") as refused:
        prepare(task, kernel, "sm_90", Stages())
    assert (refused.value.outcome, refused.value.guard) == (Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS)
    prepare(task, task.starting_kernel, "sm_90", Stages())


MAP = '"m"]\n\n[[tensor_map]]\nname = "m"\ntensor = "x"\nbox = [64]\n'


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("overlapped", '"griddepcontrol.wait;"', '""', "'second' is programmatic, but .* doesn't wait"),
        ("swizzled", '["padded_map"', '["out"', r"argument 1 \('out'\) is a buffer, but .* no pointer"),
        ("bulk", '"n"]\n', MAP, "is a tensor map"),
    ],
)
def test_what_a_launch_lacks_is_told(wide_task: Path, name: str, old: str, new: str, sentence: str) -> None:
    kernel = Kernel(hopper_kernels.ALL[name].source.replace(old, new, 1))
    with pytest.raises(RefusedError, match=sentence) as refused:
        prepare(load_task(wide_task), kernel, "sm_90", Stages())
    assert (refused.value.outcome, refused.value.guard) == (Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("cluster = [1, 1, 1]", ""),
        ("cluster = [2]", "asks for clusters, which sm_80 doesn't have; sm_90 has"),
        (f'args = ["x", "out", {MAP}', "asks for tensor maps"),
    ],
)
def test_what_an_older_gpu_lacks_is_told(wide_task: Path, line: str, sentence: str) -> None:
    task = load_task(wide_task)
    source = task.starting_kernel.source.replace('["ceil_div(n, BLOCK)"]', '["2 * ceil_div(n, BLOCK)"]')
    if "tensor_map" in line:
        source = source.replace('args = ["x", "out", "n"]', line).replace("int n)", "CUtensorMap map)")
        source = source.replace("extern", "#include <cuda.h>\nconst int n = 4;\nextern")
    else:
        source = source.replace("args =", f"{line}\nargs =")
    if not sentence:
        prepare(task, Kernel(source), "sm_80", Stages())
        return
    with pytest.raises(RefusedError, match=sentence):
        prepare(task, Kernel(source), "sm_80", Stages())
    prepare(task, Kernel(source), "sm_80", Stages(), emulated=True)


def test_triton_gets_the_scratch_memory_and_the_clusters_that_it_compiles_for(small_task: Path) -> None:
    task = load_task(small_task)
    plan = prepare(task, hopper_kernels.DESCRIPTORS, "sm_90", Stages()).at(task, {"n": 4096})
    ((launch,), (scratch,)) = plan.launches, plan.scratch
    assert scratch.nbytes >= 2 * 128 * launch.blocks
    assert launch.arguments == ("x", "out", 4096, scratch.name, 0)
    (launch,) = (
        prepare(task, hopper_kernels.SHARED_PROGRAMS, "sm_90", Stages()).at(task, {"n": 4096}).launches
    )
    assert (launch.grid, launch.cluster) == ((32, 1, 1), (2, 1, 1))
