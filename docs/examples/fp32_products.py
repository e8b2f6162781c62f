"""Time fp32 products of templates against PyTorch's with a cold L2 cache, and compare errors. Needs a GPU.

    python docs/examples/fp32_products.py

Times are medians of interleaved runs, as in evaluations. Errors are the largest over the products of magnitudes,
against float64: of templates, of PyTorch, and of plain kernels, which add up an element's products by FFMA.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, Tensor
from mctskernel.problems.templates import kernel_sources
from mctskernel.profiling.candidate import Candidate, prepare
from mctskernel.profiling.gpu.cuda_driver import open_gpu
from mctskernel.profiling.pytorch import interleaved
from mctskernel.profiling.stages import Stages

F = torch.nn.functional

LINEAR, MATRICES, BATCHES = "m k, n k", "m k, k n", "b m k, b k n"
TIMED: dict[tuple[str, Callable[..., Any]], str] = {
    (MATRICES, torch.mm): "2048x2048x2048 4096x4096x4096 32768x32768x64 333x1000x2050",
    (LINEAR, F.linear): """1000x4000x2008 2048x4096x8192 1024x8192x8192 1024x4096x1024 512x512x32768
        256x4096x4096 130x16384x4096 64x14336x4096 17x4096x4096""",
    (BATCHES, torch.bmm): "512x2048x1024x128 1024x1024x1024x24 1024x1024x128x96 256x256x256x64",
    ("m k, n k, n", lambda x, y, z: F.softmax(F.gelu(F.linear(x, y, z)), dim=1)): "1024x8192x8192",
}
RANGES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "normal": lambda x, _: x,
    "from 0 to 1": lambda x, _: torch.rand_like(x),
    "1e-30 by 1e-5": lambda x, place: x * (1e-30, 1e-5)[place],
    "1e30 by 1e5": lambda x, place: x * (1e30, 1e5)[place],
    "each from 1e-10 to 1e10": lambda x, _: x * 10 ** (20 * torch.rand_like(x) - 10),
    "lines from 1e-15 to 1e15": lambda x, at: (
        x * 10 ** (30 * torch.rand_like(x[:1] if at else x[:, :1]) - 15)
    ),
    "terms from 1e-12 to 1e6": lambda x, at: (
        x * 10 ** torch.linspace(-12, 6, x.shape[not at], device="cuda").unsqueeze(at)
    ),
}


def sources(axes: str, function: Callable[..., Any], shape: Shape) -> tuple[Task, str, str]:
    """A product's task, and its kernels of templates and the plain one."""
    inputs = tuple(
        Tensor(name, "float32", tuple(each.split()))
        for name, each in zip("xyz", axes.split(","), strict=False)
    )
    made = kernel_sources(
        function, inputs, ["out"], {name: 97 + 2 * i for i, name in enumerate(shape)}, shape
    )
    out = function(*(torch.empty(each.extents(shape), device="meta") for each in inputs)).shape
    outputs = (Tensor("out", "float32", tuple(map(str, out))),)
    task = Task(
        name="product",
        starting_kernel=Kernel(made.plain),
        inputs=inputs,
        outputs=outputs,
        search_shapes=(shape,),
    )
    return task, made.templates, made.plain


def call(task: Task, candidate: Candidate, inputs: list[torch.Tensor]) -> tuple[Any, torch.Tensor]:
    names = [each.name for each in task.inputs]
    module = interleaved.loaded(candidate)
    return interleaved.bound_plan(
        task, task.search_shapes[0], candidate, module, dict(zip(names, inputs, strict=True))
    )


def main() -> None:
    architecture = open_gpu().architecture
    torch.manual_seed(0)

    def built(task: Task, text: str) -> Candidate:
        return prepare(replace(task, starting_kernel=Kernel(text)), Kernel(text), architecture, Stages())

    cases = []
    with ThreadPoolExecutor() as pool:
        for (axes, function), words in TIMED.items():
            for text in words.split():
                shape = dict(zip("mnkb", map(int, text.split("x")), strict=False))
                task, source, _ = sources(axes, function, shape)
                cases.append((text, function, task, pool.submit(built, task, source)))
        task, *both = sources(MATRICES, torch.mm, {"m": 512, "n": 512, "k": 2048})
        kernels = [pool.submit(built, task, each) for each in both]
    print("| rows x columns x terms (x batch) | PyTorch, us | templates, us | ratio |\n|---|--:|--:|--:|")
    for text, function, of, candidate in cases:
        inputs = [torch.rand(each.extents(of.search_shapes[0]), device="cuda") for each in of.inputs]
        run, _ = call(of, candidate.result(), inputs)
        runs = {"torch": interleaved.timed(lambda: function(*inputs)), "templates": interleaved.timed(run)}  # noqa: B023 - timed within this turn of the loop
        own, other = (1e6 * median(taken) for taken in interleaved.interleaved(runs).values())
        follows = " with a bias, GELU and softmax" if len(inputs) > 2 else ""
        print(f"| {text}{follows} | {own:.1f} | {other:.1f} | {own / other:.2f} |", flush=True)
    print("\n| magnitudes | templates | PyTorch | FFMA | templates over FFMA |\n|---|--:|--:|--:|--:|")
    for name, scaled in RANGES.items():
        pair = [
            scaled(torch.randn(each.extents(task.search_shapes[0]), device="cuda"), i)
            for i, each in enumerate(task.inputs)
        ]
        exact, most = pair[0].double() @ pair[1].double(), pair[0].double().abs() @ pair[1].double().abs()
        found = [call(task, each.result(), pair) for each in kernels]
        for run, _ in found:
            run()
        outputs = (found[0][1], torch.mm(*pair), found[1][1])
        own, other, plain = (float(((each.double() - exact).abs() / most).max()) for each in outputs)
        print(f"| {name} | {own:.1e} | {other:.1e} | {plain:.1e} | {own / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
