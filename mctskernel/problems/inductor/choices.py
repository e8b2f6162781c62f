"""The configuration of each product that Inductor generates: by a formula, where Inductor would time them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, prod
from typing import Any, NamedTuple
from unittest.mock import patch

import sympy
import torch
from torch._inductor import select_algorithm
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import Layout
from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate, TritonTemplateCaller

from mctskernel.problems.inductor.generated import BLOCK

OPTIONS: Mapping[str, object] = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
    "shape_padding": False,
    "comprehensive_padding": False,
    "assert_indirect_indexing": False,
    "force_disable_caches": True,
    "compile_threads": 1,
    "triton.autotune_pointwise": False,
    "triton.cooperative_reductions": False,
    "triton.mix_order_reduction": False,
    "triton.coalesce_tiling_analysis": False,
}
"""Kernels of Inductor's own, none of a library, and nothing that a launch plan can't say.

The analysis of tilings fails at some symbolic sizes.
"""


class Units(NamedTuple):
    """What multiplies: products of a tile in the time that an element of its edges takes to load, and the sums that a
    thread should hold in registers, at most and at best."""

    edge: int
    most_sums: int
    best_sums: int


TENSOR_CORES, FP32_UNITS = Units(64, 128, 64), Units(8, 32, 32)

CONVOLUTION_WARPS = 4
"""With more, some versions of Triton compile the template of convolutions to wrong code (triton-lang/triton#1254)."""


class OneTemplate(InductorChoices):
    """Chooses one configuration of one template for each product; `hint` gives the size that an expression has."""

    def __init__(self, hint: Callable[[Any], int]) -> None:
        super().__init__()
        self._hint = hint

    def _finalize_template_configs(self, template_choices: Any, kernel_inputs: Any, *others: Any) -> Any:
        found = super()._finalize_template_configs(template_choices, kernel_inputs, *others)
        tiled = [each for each in found if isinstance(each.template, TritonTemplate)]
        tiled = [each for each in tiled if f"{BLOCK}M" in each.params.to_kwargs()]
        first = [each for each in tiled if each.template is tiled[0].template]
        if not first:
            return found
        (*batch, rows, _), (*_, inner, columns) = (
            [self._hint(size) for size in node.get_size()] for node in kernel_inputs.nodes()[-2:]
        )
        itemsize = kernel_inputs.dtype().itemsize
        units, sizes = _units(itemsize, torch.backends.cuda.matmul), (rows, columns, inner)
        return [
            min(first, key=lambda each: _cost(each.params.to_kwargs(), prod(batch), sizes, itemsize, units))
        ]

    def get_conv_configs(self, device_type: str | None = "cuda") -> Any:
        """One configuration for a convolution's output positions, channels and input channels."""
        every = super().get_conv_configs(device_type)

        def one(*sizes: Any, dtype_size: int, **options: Any) -> Iterator[Any]:
            units = _units(dtype_size, torch.backends.cudnn)
            hints = [self._hint(size) for size in sizes]

            def cost(found: Any) -> tuple[float, ...]:
                launch = {"num_stages": found.num_stages, "num_warps": found.num_warps}
                return _cost({**found.kwargs, **launch}, 1, hints, dtype_size, units)

            found = every(*sizes, dtype_size=dtype_size, **options)
            yield min((each for each in found if each.num_warps <= CONVOLUTION_WARPS), key=cost)

        return one


def _units(itemsize: int, backend: Any) -> Units:
    """Those that multiply elements of so many bytes, as PyTorch's backend allows it."""
    return TENSOR_CORES if itemsize < torch.float32.itemsize or backend.allow_tf32 else FP32_UNITS


def _cost(
    options: Mapping[str, int], batch: int, sizes: Sequence[int], itemsize: int, units: Units
) -> tuple[float, ...]:
    """What the blocks of the busiest multiprocessor cost, by the elements that they multiply and load."""
    gpu: Any = torch.cuda.get_device_properties(0)
    rows, columns, inner = (options[f"{BLOCK}{axis}"] for axis in "MNK")
    shared = options["num_stages"] * (rows + columns) * inner * itemsize
    turns = ceil(batch * ceil(sizes[0] / rows) * ceil(sizes[1] / columns) / gpu.multi_processor_count)
    padded = ceil(sizes[2] / inner) * inner
    a_thread = rows * columns / (32 * options["num_warps"])
    return (
        shared > gpu.shared_memory_per_block_optin or a_thread > units.most_sums,
        turns * (rows * columns + units.edge * (rows + columns)) * padded,
        abs(a_thread - units.best_sums),
        -inner,
    )


def only_templates(choices: list[Any]) -> list[Any]:
    """The first of Inductor's own kernels, where there is one."""
    return [each for each in choices if isinstance(each, TritonTemplateCaller)][:1] or choices


@contextmanager
def one_choice(hint: Callable[[Any], int]) -> Iterator[None]:
    """Have Inductor generate one kernel for each product, its grid written with the names of block sizes."""
    from torch._inductor.virtualized import V  # noqa: PLC0415

    ceil_div = sympy.Function("ceil_div", integer=True, positive=True)

    # PyTorch 2.13's own fails where strides are products of sums.
    def is_ordered(left: Any, right: Any) -> bool:
        return hint(left) >= hint(right)

    def named(self: SymbolicGridFn, *arguments: Any) -> Any:
        *sizes, meta = arguments
        blocks = {
            name: sympy.Symbol(name, integer=True, positive=True) for name in meta if name.startswith(BLOCK)
        }
        symbolic = {**self.kwargs_sym, **({"cdiv": ceil_div} if "cdiv" in self.kwargs_sym else {})}
        return self.fn(*sizes, {**meta, **blocks}, **symbolic)

    select_algorithm.add_preprocessing_fn(only_templates)
    try:
        with (
            V.set_choices_handler(OneTemplate(hint)),
            patch.object(SymbolicGridFn, "sympy_call", named),
            patch.object(Layout, "_stride_expr_ge_or_false", staticmethod(is_ordered), create=True),
        ):
            yield
    finally:
        select_algorithm.clear_preprocessing_fns()
