"""The precision of products in Triton kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.contract_words import narrowest_tolerance
from mctskernel.core.edit import Category
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py

COARSEST_TOLERANCE = {"tf32x3": 1e-5, "tf32": 1e-2}
"""The least tolerance, relative and absolute, at which a precision is proposed.

TF32 keeps 11 bits of a factor, so that a product is off by 2^-10 of itself at most, and a sum in which much cancels by
more; three products of the parts of two factors (Ootomo and Yokota, 2022, arXiv:2203.03341) leave out 2^-22 of it.
"""


@py.rule(Category.TENSOR_CORES, 1.5, "instruction_issue fp32_pipe tensor_pipe")
def dot_precision(context: py.TritonContext) -> Iterator[Proposal]:
    """Tensor cores in place of float32 multiplications."""
    for launched in context.launched:
        found = [
            keyword.value
            for call in py.calls(launched.function, "dot")
            for keyword in call.keywords
            if keyword.arg == "input_precision"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value == "ieee"
        ]
        for precision, tolerance in COARSEST_TOLERANCE.items():
            if found and narrowest_tolerance(context.task) >= tolerance:
                yield Proposal(
                    f"set input_precision={precision} of tl.dot{context.where(launched.function.name)}",
                    context.written(context.module.replace(each, f'"{precision}"') for each in found),
                    rationale="Tensor cores multiply float32 in parts of 11 bits; how many parts it takes is for the "
                    "tolerance to say.",
                    expected_effect="Products at a third of the tensor cores' rate."
                    if precision == "tf32x3"
                    else "Products at the tensor cores' rate.",
                    prior=1.0 if precision == "tf32x3" else 1.5,
                )
