"""Solutions on a GPU, by the steps of KernelBench's `eval_kernel_against_ref`, for problems of every kind."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task_file import load_task
from mctskernel.problems.registry import read_problem, solution_of, write_problem
from tests.problems.kernelbench.problem_files import HINGE, LINEAR, MASKED, NORMALISED, problem, written

pytestmark = pytest.mark.gpu

SEED, TRIALS, TOLERANCE = 42, 5, 1e-4
IMAGES = "torch.rand(4, 16, 33, 34)"
F = "torch.nn.functional"

# None has integers among its inputs: the harness makes floats of them, which its own references then can't take.
PROBLEMS = {
    "linear": LINEAR,
    "batch norm": NORMALISED,
    "hinge loss": HINGE,
    "mask": MASKED,
    "product": problem("return x @ y", "torch.rand(130, 257), torch.rand(257, 65)"),
    "batched product": problem("return torch.bmm(x, y)", "torch.rand(5, 33, 70), torch.rand(5, 70, 40)"),
    "transposed product": problem("return x.T @ y", "torch.rand(257, 130), torch.rand(257, 65)"),
    "depthwise convolution": problem(
        "return self.conv(x)", IMAGES, init="self.conv = nn.Conv2d(16, 16, 3, padding=1, groups=16)"
    ),
    "max pool": problem("return self.pool(x)", IMAGES, init="self.pool = nn.MaxPool2d(3, 2, 1)"),
    "average pool": problem("return self.pool(x)", IMAGES, init="self.pool = nn.AvgPool2d(3, 2, 1)"),
    "softmax": problem("return torch.softmax(x, 1)", "torch.rand(64, 1000)"),
    "layer norm": problem("return self.norm(x)", "torch.rand(64, 300)", init="self.norm = nn.LayerNorm(300)"),
    "group norm": problem("return self.norm(x)", IMAGES, init="self.norm = nn.GroupNorm(4, 16)"),
    "instance norm": problem("return self.norm(x)", IMAGES, init="self.norm = nn.InstanceNorm2d(16)"),
    "root mean square": problem(
        "return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)", "torch.rand(64, 300)"
    ),
    "activations": problem("return torch.tanh(x) * torch.sigmoid(x) + torch.nn.functional.gelu(x)", IMAGES),
    "cumulative sum": problem("return torch.cumsum(x, 1)", "torch.rand(64, 1000)"),
    "argmax": problem("return torch.argmax(x, 1)", "torch.rand(64, 300)"),
    "divergence": problem(
        f"return {F}.kl_div(torch.log(x), y, reduction='batchmean')",
        "torch.rand(300, 40).softmax(1), torch.rand(300, 40).softmax(1)",
    ),
    "squared error": problem("return torch.mean((x - y) ** 2)", "torch.rand(96, 32), torch.rand(96, 32)"),
    "attention": problem(
        f"return {F}.scaled_dot_product_attention(x, y, y)",
        "torch.rand(2, 4, 65, 32), torch.rand(2, 4, 65, 32)",
    ),
    "convolution": problem(
        "return torch.relu(self.conv(x))", IMAGES, init="self.conv = nn.Conv2d(16, 24, 3, padding=1)"
    ),
    "transposed convolution": problem(
        "return self.conv(x)", IMAGES, init="self.conv = nn.ConvTranspose2d(16, 8, 3, stride=2)"
    ),
    "wide convolution": problem(
        "return self.conv(x)",
        "torch.rand(16, 64, 56, 56)",
        init="self.conv = nn.Conv2d(64, 128, 3, padding=1)",
    ),
    "wide transposed convolution": problem(
        "return self.conv(x)", "torch.rand(8, 64, 64, 64)", init="self.conv = nn.ConvTranspose2d(64, 128, 3)"
    ),
}
TEMPLATES, PLAIN = "start_templates.cu", "kernel.cu"
OTHERWISE = {
    **dict.fromkeys(("convolution", "transposed convolution"), TEMPLATES),
    **dict.fromkeys(("wide convolution", "wide transposed convolution"), PLAIN),
}
"""The start that doesn't compute a convolution as cuDNN does: of few channels in float32, else in TF32. The two are
further apart than the harness's tolerance."""


def solutions(folder: Path, text: str) -> dict[str, str]:
    """The text of a solution from each of a problem's starts in CUDA C++, by its file."""
    write_problem(read_problem(written(folder, text), Language.CUDA), folder / "task")
    task = load_task(folder / "task", Language.CUDA)
    found = {}
    for file in sorted((folder / "task").glob("*.cu")):
        (found[file.name],) = solution_of(task, Kernel(file.read_text("utf-8"))).values()
    return found


@pytest.fixture(scope="module")
def written_solutions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """Of the problems that are tested; their extensions are built at once, and taken from PyTorch's cache later."""
    wanted = {each.callspec.params["name"] for each in request.session.items if each.path == request.path}
    found = {}
    for name in PROBLEMS.keys() & wanted:
        found[name] = solutions(tmp_path_factory.mktemp(name.replace(" ", "_")), PROBLEMS[name])
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(built, (text for each in found.values() for text in each.values())))
    return found


def built(text: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(text, "<string>", "exec"), names)  # noqa: S102 - as the harness does
    names["_extension"]()


def seeded() -> None:
    torch.manual_seed(SEED)
    torch.cuda.manual_seed(SEED)


def moved(values: list[Any]) -> list[Any]:
    """Tensors as the harness passes them: on the GPU, and floats whatever they were."""
    return [each.to(torch.float32).cuda() if isinstance(each, torch.Tensor) else each for each in values]


def evaluated(original: str, custom: str) -> tuple[list[tuple[Any, Any]], float]:
    """What the two models return in each trial, and the milliseconds of the custom one."""
    context: dict[str, Any] = {}
    exec(compile(original, "<string>", "exec"), context)  # noqa: S102 - as the harness does
    model, given, drawn = (context[each] for each in ("Model", "get_init_inputs", "get_inputs"))
    seeded()
    arguments = moved(given())
    found = []
    with torch.no_grad():
        seeded()
        ours = model(*arguments).cuda()
        exec(compile(custom, "<string>", "exec"), context)  # noqa: S102 - over the names of the problem
        seeded()
        theirs = context["ModelNew"](*arguments).cuda()
        torch.manual_seed(SEED)
        seeds = [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(TRIALS)]
        for seed in seeds:
            torch.manual_seed(seed)
            torch.cuda.manual_seed(seed)
            inputs = moved(drawn())
            found.append((ours(*inputs), theirs(*inputs)))
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        theirs(*inputs)
        stop.record()
        torch.cuda.synchronize()
    return found, start.elapsed_time(stop)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_harness_accepts_the_solutions_of_all_starts(
    name: str, written_solutions: dict[str, dict[str, str]]
) -> None:
    assert written_solutions[name]
    for file, text in written_solutions[name].items():
        tolerance = TOLERANCE if OTHERWISE.get(name) != file else 1e-2
        trials, milliseconds = evaluated(PROBLEMS[name], text)
        for expected, found in trials:
            assert expected.shape == found.shape
            assert torch.allclose(expected, found, atol=tolerance, rtol=tolerance), file
        assert milliseconds > 0
