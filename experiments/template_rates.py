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
    axes: str
    sizes: Shape
    dtype: str = "float32"

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The function's inputs, of normal numbers."""
        return tuple(
            Tensor(name, self.dtype, tuple(axes))
            for name, axes in zip("xyz", self.axes.split(), strict=False)
        )


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "mk kn": torch.matmul,
    "mk nk": lambda x, y: x @ y.T,
    "bmk bkn": torch.bmm,
    "bhqd bhkd bhkd": functional.scaled_dot_product_attention,
}


def _product(sizes: Sequence[int], dtype: str = "bfloat16", axes: str = "mk kn") -> Case:
    batch = {"b": 128} if "b" in axes else {}
    name = f"{dtype} {'128 x ' if batch else ''}{' x '.join(map(str, sizes))}, {axes}"
    return Case(name, _FUNCTIONS[axes], axes, {**batch, **dict(zip("mnk", sizes, strict=True))}, dtype)


def _attention(heads: tuple[int, int], length: int, size: int, dtype: str, *, causal: bool = False) -> Case:
    def attention(x: Any, y: Any, z: Any) -> Any:
        return functional.scaled_dot_product_attention(x, y, z, is_causal=causal)

    sizes = dict(zip("bhqkd", (*heads, length, length, size), strict=True))
    name = f"{dtype} {'causal ' if causal else ''}attention {heads[0] * heads[1]} x {length} x {size}"
    return Case(name, attention, "bhqd bhkd bhkd", sizes, dtype)


_ODD = """1000 4000 2008, 4104 1032 4104, 130 16384 4096, 2048 11008 4096, 8192 320 1280, 3000 3000 3000,
16384 1024 1024, 512 512 32768, 6152 6152 640, 5000 5001 5000"""

CASES: Sequence[Case] = (
    *(_product((n, n, n), axes=axes) for axes in ("mk kn", "mk nk") for n in (4096, 8192)),
    *(_product([*map(int, each.split())], axes="mk nk") for each in _ODD.split(",")),
    *(_product((n, n, n), "float32") for n in (2048, 4096)),
    _product((512, 2048, 1024), "float32", "bmk bkn"),
    *(_product(each, "float32") for each in ((32768, 32768, 64), (32768, 32768, 32), (1 << 20, 768, 256))),
    _product((1024, 8192, 8192), "float32", "mk nk"),
    _attention((4, 16), 2048, 128, "bfloat16", causal=True),
    _attention((4, 16), 2048, 128, "bfloat16"),
    _attention((4, 16), 2048, 64, "float32"),
    _attention((32, 32), 512, 1024, "float32"),
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
        for line in rows(case, values) if only in case.name else ():
            click.echo(line)


def template(case: Case) -> str:
    """The template's kernel for a case; empty where none applies."""
    # Tracing tells dimensions apart by their sizes.
    different = {name: 97 + 2 * number for number, name in enumerate(case.sizes)}
    return kernel_sources(case.function, case.inputs, ["out"], different, case.sizes).templates


def rows(case: Case, values: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The table's lines of a case: its template as it is, and with other values of macros."""
    source, gpu = template(case), open_gpu()
    sources: dict[str, str] = {"first choice": source}
    known = [name for name in values if f"#define {name} " in source]
    for chosen in itertools.product(*(values[name] for name in known)):
        text = source
        for name, value in zip(known, chosen, strict=True):
            text = re.sub(rf"#define {name} \d+", f"#define {name} {value}", text)
        label = ", ".join(f"{name} {value}" for name, value in zip(known, chosen, strict=True))
        sources |= {label: text} if text not in sources.values() else {}
    tensors = {
        each.name: torch.randn(each.extents(case.sizes), device="cuda").to(getattr(torch, each.dtype))
        for each in case.inputs
    }
    right = case.function(*(each.double() for each in tensors.values()))
    given = case.function(*tensors.values())
    output = Tensor("out", case.dtype, tuple(map(str, given.shape)))
    task = Task(
        name="case",
        starting_kernel=Kernel(source),
        inputs=case.inputs,
        outputs=(output,),
        search_shapes=(case.sizes,),
    )

    def built(text: str) -> Candidate | RefusedError:
        try:
            return prepare(
                replace(task, starting_kernel=Kernel(text)), Kernel(text), gpu.architecture, Stages()
            )
        except RefusedError as error:
            return error

    runs = {"PyTorch": timed(lambda: case.function(*tensors.values()))}
    errors = {"PyTorch": float((given.double() - right).norm() / right.norm())}
    with ThreadPoolExecutor(8) as pool:
        candidates = dict(zip(sources, pool.map(built, sources.values()), strict=True))
    for label, candidate in candidates.items():
        try:
            if isinstance(candidate, RefusedError):
                raise candidate
            call, out = bound_plan(task, case.sizes, candidate, loaded(candidate), tensors)
            call()
            torch.cuda.synchronize()
        except (RefusedError, CudaError) as error:
            yield f"| {case.name} | {label} | {str(error).splitlines()[0][:100]} |"
            continue
        errors[label] = float((out.double() - right).norm() / right.norm())
        runs[label] = timed(call)
    taken = {name: 1e3 * median(samples) for name, samples in interleaved(runs).items()}
    base, own = taken.pop("PyTorch"), errors["PyTorch"]
    for label, spent in sorted(taken.items(), key=lambda each: (each[0] != "first choice", each[1])):
        figures = f"{base:.4f} | {spent:.4f} | {base / spent:.2f} | {errors[label]:.1e} | {own:.1e}"
        yield f"| {case.name} | {label} | {figures} |"


if __name__ == "__main__":
    main()
