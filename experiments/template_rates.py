"""Templates of products and attention against PyTorch: first choices, and other values of their macros.

    python -m mctskernel.experiments.template_rates [--only WORD] [--set TILE_N=128,256 ...]

Prints a Markdown table. A kernel and PyTorch are interleaved in one process and timed by CUDA events with a cold L2
cache; medians. Errors are norms of differences from float64, over that of the result. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import click
import torch
from torch.nn import functional

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, Tensor
from mctskernel.problems.templates import kernel_sources
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.gpu.cuda_driver import CudaError, open_gpu
from mctskernel.profiling.pytorch.interleaved import bound_plan, interleaved, loaded, timed
from mctskernel.profiling.stages import Stages


class Case(NamedTuple):
    """A function of tensors: their axes by letters, the sizes of these, and the element type."""

    name: str
    function: Callable[..., Any]
    axes: tuple[str, ...]
    sizes: Shape
    dtype: str = "float32"

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The function's inputs, of normal numbers."""
        named = zip("xyz", self.axes, strict=False)
        return tuple(Tensor(name, self.dtype, tuple(axes)) for name, axes in named)


def _linear(x: Any, y: Any) -> Any:
    return x @ y.T


def _attention(x: Any, y: Any, z: Any) -> Any:
    return functional.scaled_dot_product_attention(x, y, z)


def _causal(x: Any, y: Any, z: Any) -> Any:
    return functional.scaled_dot_product_attention(x, y, z, is_causal=True)


def _product(m: int, n: int, k: int, dtype: str = "float32", axes: str = "mk kn", *, name: str = "") -> Case:
    functions: Mapping[str, Callable[..., Any]] = {
        "mk kn": torch.matmul,
        "mk nk": _linear,
        "bmk bkn": torch.bmm,
    }
    batch = {"b": 128} if "b" in axes else {}
    label = f"{name or axes} {dtype} {'128x' if batch else ''}{m}x{n}x{k}"
    return Case(label, functions[axes], tuple(axes.split()), {**batch, "m": m, "n": n, "k": k}, dtype)


_HALF = "bfloat16"
_HEADS = ("bhqd", "bhkd", "bhkd")

CASES: Sequence[Case] = (
    *(_product(n, n, n, _HALF) for n in (4096, 8192)),
    *(_product(n, n, n, _HALF, "mk nk") for n in (4096, 8192)),
    *(
        _product(*sizes, _HALF, "mk nk")
        for sizes in (
            (1000, 4000, 2008),
            (4104, 1032, 4104),
            (130, 16384, 4096),
            (2048, 11008, 4096),
            (8192, 320, 1280),
            (3000, 3000, 3000),
            (16384, 1024, 1024),
            (512, 512, 32768),
            (6152, 6152, 640),
            (5000, 5001, 5000),
        )
    ),
    *(_product(n, n, n) for n in (2048, 4096)),
    _product(512, 2048, 1024, axes="bmk bkn"),
    _product(32768, 32768, 64, name="few terms"),
    _product(32768, 32768, 32, name="few terms"),
    _product(1 << 20, 768, 256, name="many rows"),
    _product(1024, 8192, 8192, axes="mk nk", name="linear"),
    Case("causal attention", _causal, _HEADS, {"b": 4, "h": 16, "q": 2048, "k": 2048, "d": 128}, _HALF),
    Case("attention", _attention, _HEADS, {"b": 4, "h": 16, "q": 2048, "k": 2048, "d": 128}, _HALF),
    Case("attention of 64", _attention, _HEADS, {"b": 4, "h": 16, "q": 2048, "k": 2048, "d": 64}),
    Case("attention of 1024", _attention, _HEADS, {"b": 32, "h": 32, "q": 512, "k": 512, "d": 1024}),
)


@click.command()
@click.option("--only", default="", help="Cases whose names have this in them.")
@click.option("--set", "settings", multiple=True, metavar="MACRO=VALUE,...", help="Try these values as well.")
def main(only: str, settings: tuple[str, ...]) -> None:
    """Print a table of templates against PyTorch."""
    values = {name: text.split(",") for name, _, text in (each.partition("=") for each in settings)}
    click.echo(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    click.echo(
        "| case | macros | PyTorch ms | kernel ms | ratio | error | PyTorch's |\n|---|---|---|---|---|---|---|"
    )
    for case in CASES:
        if only in case.name:
            for line in rows(case, values):
                click.echo(line)


def rows(case: Case, values: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The table's lines of a case: its template as it is, and with other values of macros."""
    source = template(case)
    sources: dict[str, str] = {"": source} if source else {}
    known = [name for name in values if f"#define {name} " in source]
    for chosen in itertools.product(*(values[name] for name in known)):
        text = source
        for name, value in zip(known, chosen, strict=True):
            text = re.sub(rf"#define {name} \d+", f"#define {name} {value}", text)
        label = ", ".join(f"{name} {value}" for name, value in zip(known, chosen, strict=True))
        sources |= {label: text} if text not in sources.values() else {}
    gpu = open_gpu()
    tensors = [torch.randn(each.extents(case.sizes), device="cuda").to(_type(each)) for each in case.inputs]
    right = case.function(*(each.double() for each in tensors))
    given = case.function(*tensors)
    runs = {"PyTorch": timed(lambda: case.function(*tensors))}
    errors = {"PyTorch": _error(given, right)}
    output = Tensor("out", case.dtype, tuple(map(str, given.shape)))

    def built(text: str) -> Candidate | RefusedError:
        try:
            return prepare(
                replace(task, starting_kernel=Kernel(text)), Kernel(text), gpu.architecture, Stages()
            )
        except RefusedError as error:
            return error

    task = Task(
        name="case",
        starting_kernel=Kernel(source),
        inputs=case.inputs,
        outputs=(output,),
        search_shapes=(case.sizes,),
    )
    named = {each.name: tensor for each, tensor in zip(case.inputs, tensors, strict=True)}
    with ThreadPoolExecutor(8) as pool:
        candidates = list(pool.map(built, sources.values()))
    for label, candidate in zip(sources, candidates, strict=True):
        try:
            if isinstance(candidate, RefusedError):
                raise candidate
            call, out = bound_plan(task, case.sizes, candidate, loaded(candidate), named)
            call()
            torch.cuda.synchronize()
        except (RefusedError, CudaError) as error:
            yield f"| {case.name} | {label} | {str(error).splitlines()[0][:100]} |"
            continue
        errors[label], runs[label] = _error(out, right), timed(call)
    taken = {name: 1e3 * median(samples) for name, samples in interleaved(runs).items()}
    base, own = taken.pop("PyTorch"), errors["PyTorch"]
    for label, spent in sorted(taken.items(), key=lambda each: (bool(each[0]), each[1])):
        figures = f"{base:.4f} | {spent:.4f} | {base / spent:.2f} | {errors[label]:.1e} | {own:.1e}"
        yield f"| {case.name} | {label or 'first choice'} | {figures} |"


def template(case: Case) -> str:
    """The template's kernel for a case; empty where none applies."""
    # Tracing tells dimensions apart by their sizes.
    different = {name: 97 + 2 * number for number, name in enumerate(case.sizes)}
    return kernel_sources(case.function, case.inputs, ["out"], different, case.sizes).templates


def _type(each: Tensor) -> torch.dtype:
    found = getattr(torch, each.dtype)
    assert isinstance(found, torch.dtype)  # noqa: S101 - of the cases above
    return found


def _error(found: Any, right: Any) -> float:
    return float((found.double() - right).norm() / right.norm())


if __name__ == "__main__":
    main()
