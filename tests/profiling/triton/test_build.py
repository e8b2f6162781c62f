"""Triton kernels built without a GPU: which variants are compiled, what they are compiled to, and what is refused."""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import ResolvedPlan
from mctskernel.profiling.build import BuildFailure
from mctskernel.profiling.candidate import Specialised
from mctskernel.profiling.machine_code.cubin import disassemble
from mctskernel.profiling.triton.build import build_triton
from tests.profiling.triton_programs import built, module, plan

SCALE = """
@triton.jit
def scale(x, out, rows, columns, factor, BLOCK: tl.constexpr, ADD: tl.constexpr = 0):
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        j = start + tl.arange(0, BLOCK)
        inside = (j < columns) & (row < rows)
        value = tl.load(x + row * columns + j, mask=inside)
        tl.store(out + row * columns + j, value * factor + ADD, mask=inside)
"""
ARGUMENTS = ["x", "out", "rows", "columns", "0.5"]
DTYPES = {"x": "float32", "out": "float32"}


def source(args: list[str] = ARGUMENTS, constexprs: Mapping[str, Number | str] | None = None) -> str:
    return module(
        SCALE,
        "scale",
        args,
        grid=["rows"],
        constexprs=constexprs if constexprs is not None else {"BLOCK": 512},
    )


def plans(text: str, *shapes: tuple[int, int]) -> list[ResolvedPlan]:
    return [plan(text, {"rows": rows, "columns": columns}, DTYPES) for rows, columns in shapes]


def failure(text: str, dtypes: Mapping[str, str] = DTYPES) -> BuildFailure:
    kernel = Kernel(text, Language.TRITON)
    resolved = plan(text, {"rows": 64, "columns": 64}, dtypes)
    made = build_triton(kernel, [resolved], 1, "sm_90", dtypes)
    assert isinstance(made, BuildFailure)
    return made


def of_plan(made: Specialised, resolved: ResolvedPlan) -> str:
    (launch,) = resolved.launches
    return made.builds[made.launches[launch][1]].ptx


def test_loads_are_wide_where_rows_are_aligned_and_narrow_elsewhere() -> None:
    text = source()
    searched, aligned, odd = shapes = plans(text, (64, 4096), (16, 160), (3, 161))
    made = built(text, shapes, DTYPES)
    assert len(made.builds) == 2
    assert of_plan(made, searched) == of_plan(made, aligned)
    assert re.search(r"ld\.global\.v4\.b32", of_plan(made, searched))
    assert not re.search(r"ld\.global\.v[24]\.b32", of_plan(made, odd))
    assert re.search(r"ld\.global\.b32", of_plan(made, odd))


def test_a_stride_of_one_is_a_constant() -> None:
    code = SCALE.replace("+ j,", "+ j * step,").replace("factor, BLOCK", "factor, step, BLOCK")
    text = module(code, "scale", [*ARGUMENTS, "rows"], grid=["rows"], constexprs={"BLOCK": 512})
    searched, others = shapes = plans(text, (1, 4096), (16, 4096))
    made = built(text, shapes, DTYPES)
    assert re.search(r"ld\.global\.v4\.b32", of_plan(made, searched))
    assert not re.search(r"ld\.global\.v4\.b32", of_plan(made, others))
    (launch,), (other,) = searched.launches, others.launches
    # `rows` is a constant as well.
    assert len(made.launches[launch][0].arguments) == len(made.launches[other][0].arguments) - 2


def test_lines_are_those_of_the_source() -> None:
    text = source()
    made = built(text, plans(text, (64, 64)), DTYPES)
    wanted = next(n for n, line in enumerate(text.splitlines(), 1) if "tl.load" in line)
    assert re.search(rf"\.loc\s+1\s+{wanted}\s", made.builds[0].ptx)
    assert tempfile.gettempdir() not in made.builds[0].ptx
    code = disassemble(made.builds[0].cubin)["scale"].instructions
    assert {each.line for each in code if each.mnemonic == "LDG"} == {wanted}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (source(constexprs={}), "gives no value for the constexpr 'BLOCK'"),
        (
            source(constexprs={"BLOCK": 64, "BLOK": 3}),
            "the constexpr 'BLOK', which the kernel doesn't have (it has: BLOCK, ADD)",
        ),
    ],
)
def test_a_plan_that_does_not_fit_its_kernel_fails(text: str, wanted: str) -> None:
    found = failure(text)
    assert wanted in found.message
    assert found.message.endswith(".")


ERRORS = [
    ("    row = nobody", "nobody is not defined"),
    ("    tl.static_assert(BLOCK > 9999, 'BLOCK is too small')", "BLOCK is too small"),
    ("    return row", "return"),  # said by MLIR, not by Triton's Python
    ("    v = tl.load(x, cache_modifier='.ca', volatile=True)", "ptxas"),  # said by ptxas
]


@pytest.mark.parametrize(("statement", "wanted"), ERRORS)
def test_errors_are_sentences_with_their_line(
    statement: str, wanted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = source().replace("    row = tl.program_id(0)\n", f"    row = tl.program_id(0)\n{statement}\n")
    found = failure(text)
    line = 1 + text[: text.index(statement)].count("\n")
    assert wanted in found.message
    assert found.message.startswith(f"Line {line}: " if wanted != "ptxas" else "Triton: ptxas: ")
    assert len(found.message) < 400
    everything = found.message + found.log
    assert tempfile.gettempdir() + "/" not in everything
    assert str(Path(sys.prefix)) not in everything
    assert capfd.readouterr() == ("", "")
