"""Triton kernels built without a GPU: which variants are compiled, what they are compiled to, and what is refused."""

from __future__ import annotations

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
from mctskernel.profiling.arguments import bind, parameter_types
from mctskernel.profiling.build import BuildFailure
from mctskernel.profiling.candidate import Specialised
from mctskernel.profiling.machine_code.disassembly import disassemble
from mctskernel.profiling.triton.build import build_triton
from tests.profiling.triton_programs import HEADER, built, module, plan

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


def test_one_variant_is_enough_where_no_time_is_taken_of_aligned_rows() -> None:
    text = source()
    made = built(text, plans(text, (7, 4097), (16, 160), (3, 161)), DTYPES)
    assert len(made.builds) == 1


def test_marks_hold_for_every_shape_that_is_timed() -> None:
    text = source()
    shapes = plans(text, (64, 4096), (7, 4096))
    kernel = Kernel(text, Language.TRITON)
    made = build_triton(kernel, shapes, 2, "sm_90", DTYPES)
    assert isinstance(made, Specialised)
    # The rows differ, one no multiple of 16, so that only the columns are marked: one variant serves both.
    assert len(made.builds) == 1
    assert "ld.global.v4.b32" in made.builds[0].ptx


def test_one_is_a_number_like_any_other() -> None:
    text = source()
    made = built(text, plans(text, (1, 1), (5, 7)), DTYPES)
    assert len(made.builds) == 1


def test_constexprs_warps_and_stages_are_compiled_apart() -> None:
    text = source(constexprs={"BLOCK": "max(16, min(512, columns))"})
    made = built(text, plans(text, (64, 512), (64, 128), (64, 16)), DTYPES)
    assert len(made.builds) == 3


def test_the_launch_is_what_the_compiled_code_takes() -> None:
    text = source()
    (resolved,) = shapes = plans(text, (64, 4096))
    made = built(text, shapes, DTYPES)
    launch, index = made.launches[resolved.launches[0]]
    build = made.builds[index]
    types = parameter_types(build.ptx, build.entries["scale"])
    assert len(types) == len(launch.arguments)
    assert launch.arguments[:5] == ("x", "out", 64, 4096, 0.5)
    assert set(launch.arguments[5:]) <= {0}
    assert launch.block == (128, 1, 1)
    packed = bind(launch, types, {"x": 256, "out": 512})
    assert packed[3] == (4096).to_bytes(4, "little")
    (resources,) = build.resources
    assert resources.kernel == "scale"
    assert 8 <= resources.registers <= 255
    assert (resources.spill_load_bytes, resources.stack_bytes) == (0, 0)


def test_shared_memory_is_asked_for_at_launch() -> None:
    body = (
        "\n@triton.jit\ndef k(x, out):\n    i = tl.arange(0, 64)\n"
        "    tile = tl.load(x + i[:, None] * 64 + i[None, :])\n"
        "    tl.store(out + i[:, None] * 64 + i[None, :], tl.trans(tile))\n"
    )
    text = module(body, "k", ["x", "out"])
    resolved = plan(text, {}, DTYPES)
    made = built(text, [resolved], DTYPES)
    launch, _ = made.launches[resolved.launches[0]]
    assert launch.shared_bytes >= 64 * 64 * 4
    assert made.builds[0].resources[0].shared_bytes == 0


def test_whole_numbers_are_32_bits_wide_where_they_fit() -> None:
    text = source(args=["x", "out", "rows", "columns * 1048576", "0.5"])
    made = built(text, plans(text, (1, 8), (1, 4096)), DTYPES)
    kinds = {parameter_types(build.ptx, "scale")[3] for build in made.builds}
    assert {kind[1:] for kind in kinds} == {"32", "64"}


def test_buffers_have_their_own_types_and_those_of_scratch_are_in_the_plan() -> None:
    text = source().replace("args = ['x', 'out'", "args = ['x', 'partial'")
    text = text.replace(
        '"""\nimport', '[[scratch]]\nname = "partial"\ndtype = "float16"\nshape = ["rows"]\n"""\nimport'
    )
    dtypes = {"x": "bfloat16", "out": "float32"}
    resolved = plan(text, {"rows": 64, "columns": 64}, dtypes)
    made = built(text, [resolved], dtypes)
    assert "bf16" in made.builds[0].ptx
    assert re.search(r"st\.global(\.v\d)?\.b(16|32)", made.builds[0].ptx)
    assert "cvt.rn.f16" in made.builds[0].ptx


def test_lines_are_those_of_the_source() -> None:
    text = source()
    made = built(text, plans(text, (64, 64)), DTYPES)
    wanted = next(n for n, line in enumerate(text.splitlines(), 1) if "tl.load" in line)
    assert re.search(rf"\.loc\s+1\s+{wanted}\s", made.builds[0].ptx)
    assert tempfile.gettempdir() not in made.builds[0].ptx
    code = disassemble(made.builds[0].cubin).functions["scale"].instructions
    assert {each.line for each in code if each.mnemonic == "LDG"} == {wanted}


def test_no_path_of_this_machine_is_written_down() -> None:
    body = "\n@triton.jit\ndef k(x, out):\n    tl.store(out, tl.sum(tl.load(x + tl.arange(0, 128)), 0))\n"
    text = module(body, "k", ["x", "out"])
    made = built(text, [plan(text, {}, DTYPES)], DTYPES)
    assert "triton/language/standard.py" in made.builds[0].ptx
    assert sys.prefix not in made.builds[0].ptx


def test_the_same_source_comes_to_the_same_code() -> None:
    text = source()
    first, second = (built(text, plans(text, (64, 4096)), DTYPES) for _ in range(2))
    assert [b.cubin for b in first.builds] == [b.cubin for b in second.builds]
    assert [b.ptx for b in first.builds] == [b.ptx for b in second.builds]


def test_older_architectures_are_built_for_too() -> None:
    text = source()
    made = built(text, plans(text, (64, 4096)), DTYPES, architecture="sm_80")
    assert ".target sm_80" in made.builds[0].ptx
    assert made.builds[0].architecture == "sm_80"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (source(args=ARGUMENTS[:4]), "has 4 arguments; the kernel has 5 parameters that are no constexprs"),
        (source(args=[*ARGUMENTS, "1"]), "has 6 arguments"),
        (source(constexprs={}), "gives no value for the constexpr 'BLOCK'"),
        (
            source(constexprs={"BLOCK": 64, "BLOK": 3}),
            "the constexpr 'BLOK', which the kernel doesn't have (it has: BLOCK, ADD)",
        ),
        (source(constexprs={"BLOCK": 64, "rows": 3}), "the constexpr 'rows'"),
        (
            source().replace('kernel = "scale"', 'kernel = "other"'),
            "'other', which the source doesn't define",
        ),
    ],
)
def test_a_plan_that_does_not_fit_its_kernel_fails(text: str, wanted: str) -> None:
    found = failure(text)
    assert wanted in found.message
    assert found.message.endswith(".")


ERRORS = [
    ("    row = nobody", "nobody is not defined"),
    ("    j = tl.arange(0, 100)", "power of 2"),
    ("    v = tl.arange(0, 64) + tl.arange(0, 32)", "incompatible dimensions"),
    ("    v = tl.load(rows)", "Unsupported ptr type"),
    ("    v = tl.dot(rows, rows)", "rank"),
    ("    tl.static_assert(BLOCK > 9999, 'BLOCK is too small')", "BLOCK is too small"),
    ("    v = tl.sum(tl.arange(0, 64), 7)", "axis"),
    ("    while rows > 0:\n        rows = 1.5", "Loop-carried variable rows"),
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


def test_an_error_in_a_called_function_names_its_own_line() -> None:
    text = source().replace(HEADER, HEADER + "\n\n@triton.jit\ndef twice(v):\n    return v * two\n")
    text = text.replace("value * factor", "twice(value) * factor")
    line = 1 + text[: text.index("    return v * two")].count("\n")
    assert failure(text).message == f"Line {line}: two is not defined."


def test_what_is_no_python_fails_with_its_line() -> None:
    text = source().replace("row = tl.program_id(0)", "row = = 3")
    assert re.match(r"Line \d+: invalid syntax\.", failure(text).message)


def test_what_is_forbidden_is_not_built_either() -> None:
    text = source() + "import os\n"
    assert "not allowed" in failure(text).message


def test_a_constant_that_is_no_constexpr_is_refused_as_triton_refuses_it() -> None:
    text = source().replace(HEADER, HEADER + "TWO = 2\n").replace("value * factor", "value * TWO")
    assert "Cannot access global variable TWO" in failure(text).message
    text = text.replace("TWO = 2", "TWO = tl.constexpr(2)")
    built(text, plans(text, (64, 64)), DTYPES)
