"""What interpreted instructions compute, against Python's integers."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mctskernel.profiling.machine_code.interpreted_opcodes import truth_text
from tests.profiling.machine_code.machine_programs import result_of

MASK = 2**32 - 1
words = st.integers(0, MASK) | st.sampled_from([0, 1, MASK, 2**31, 2**31 - 1])
doublewords = st.integers(0, 2**64 - 1) | st.sampled_from([0, MASK, 2**32, 2**63, 2**64 - 1])
few = settings(max_examples=15, deadline=None)


def signed(x: int, bits: int = 32) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def halves(*values: int) -> list[int]:
    return [half for value in values for half in (value & MASK, value >> 32)]


@few
@given(words, words, words)
def test_three_operands_are_added_with_their_signs(a: int, b: int, c: int) -> None:
    assert result_of("IADD3 R4, R16, -R17, R18", a, b, c) == (a - b + c) & MASK


@few
@given(doublewords, doublewords)
@example(MASK, 1)
def test_carries_make_64_bit_additions(a: int, b: int) -> None:
    code = "IADD3 R6, P0, R16, R18, RZ\nIADD3.X R4, R17, R19, RZ, P0, !PT"
    assert result_of(code, *halves(a, b)) == (a + b) % 2**64 >> 32


@few
@given(doublewords, doublewords)
@example(5, 5)
@example(2**32, 0)
def test_carries_make_64_bit_subtractions(a: int, b: int) -> None:
    code = "IADD3 R6, P0, R16, -R18, RZ\nIADD3.X R4, R17, ~R19, RZ, P0, !PT"
    assert result_of(code, *halves(a, b)) == (a - b) % 2**64 >> 32


@few
@given(words, words, doublewords)
def test_wide_products_are_signed_unless_told_otherwise(a: int, b: int, c: int) -> None:
    expected = (signed(a) * signed(b) + c) % 2**64
    low, high = halves(c)
    assert result_of("IMAD.WIDE R4, R16, R17, R18", a, b, low, high) == expected & MASK
    assert result_of("IMAD.WIDE R8, R16, R17, R18\nMOV R4, R9", a, b, low, high) == expected >> 32
    unsigned = (a * b + c) % 2**64
    assert result_of("IMAD.WIDE.U32 R8, R16, R17, R18\nMOV R4, R9", a, b, low, high) == unsigned >> 32


@few
@given(words, words, doublewords)
def test_the_addend_of_a_high_product_is_a_pair(a: int, b: int, c: int) -> None:
    assert result_of("IMAD.HI.U32 R4, R16, R17, R18", a, b, *halves(c)) == (a * b + c) % 2**64 >> 32


@few
@given(words, words, words)
def test_low_products(a: int, b: int, c: int) -> None:
    assert result_of("IMAD R4, R16, R17, R18", a, b, c) == (a * b + c) & MASK
    assert result_of("IMAD R4, R16, 0x8, -R17", a, b) == (8 * a - b) & MASK


@few
@given(doublewords, doublewords, st.integers(1, 31))
def test_two_leas_scale_a_64_bit_index(index: int, base: int, shift: int) -> None:
    code = f"LEA R6, P0, R16, R18, {shift:#x}\nLEA.HI.X R4, R16, R19, R17, {shift:#x}, P0"
    assert result_of(code, *halves(index, base)) == ((index << shift) + base) % 2**64 >> 32


@few
@given(words, words, st.integers(1, 31))
def test_lea_extends_the_sign_of_a_32_bit_index(index: int, base: int, shift: int) -> None:
    code = f"LEA.HI.X.SX32 R4, R16, R17, {shift:#x}, !PT"
    assert result_of(code, index, base) == ((signed(index) << shift) % 2**64 + (base << 32)) % 2**64 >> 32


@few
@given(doublewords, st.integers(0, 31))
def test_funnel_shifts_take_the_word_that_is_named(value: int, shift: int) -> None:
    low, high = halves(value)
    assert result_of("SHF.R.U64 R4, R16, R18, R17", low, high, shift) == (value >> shift) & MASK
    assert result_of("SHF.L.U64.HI R4, R16, R18, R17", low, high, shift) == (value << shift) % 2**64 >> 32
    assert result_of("SHF.R.S32.HI R4, RZ, R18, R17", low, high, shift) == signed(high) >> shift & MASK
    assert result_of("SHF.L.U32 R4, R16, R18, RZ", low, high, shift) == (low << shift) & MASK


@few
@given(words, words, words, st.integers(0, 255))
def test_logic_follows_its_truth_table(a: int, b: int, c: int, table: int) -> None:
    expected = sum(
        (table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32)
    )
    assert result_of(f"LOP3.LUT R4, R16, R17, R18, {table:#x}, !PT", a, b, c) == expected


def test_every_truth_table_has_an_expression() -> None:
    for table in range(256):
        text = truth_text(table)
        for row in range(8):
            names = {"a": row >> 2 & 1, "b": row >> 1 & 1, "c": row & 1}
            value = eval(text, {"__builtins__": {}}, names)  # noqa: S307 - our own text
            assert value & 1 == table >> row & 1, (table, row)


COMPARISONS = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!="}


@few
@given(doublewords, doublewords, st.sampled_from(sorted(COMPARISONS)))
@example(2**32, 2**32 + 1, "LT")
@example(2**32 + 1, 2**32, "GE")
def test_64_bit_comparisons_are_made_of_two(a: int, b: int, name: str) -> None:
    code = (
        f"ISETP.{name}.U32.AND P1, PT, R16, R18, PT\n"
        f"ISETP.{name}.AND.EX P0, PT, R17, R19, PT, P1\n"
        "SEL R4, RZ, 0x1, !P0"
    )
    x, y = signed(a, 64), signed(b, 64)
    expected = {"LT": x < y, "LE": x <= y, "GT": x > y, "GE": x >= y, "EQ": x == y, "NE": x != y}[name]
    assert result_of(code, *halves(a, b)) == expected


@pytest.mark.parametrize(
    ("code", "parameters", "expected"),
    [
        ("IABS R4, R16", (2**32 - 5,), 5),
        ("VIMNMX R4, R16, R17, PT", (MASK, 3), MASK),
        ("VIMNMX R4, R16, R17, !PT", (MASK, 3), 3),
        ("VIADDMNMX.RELU R4, R16, -R17, 0x7, PT", (3, 9), 0),
        ("VIADDMNMX R4, R16, R17, 0x7, PT", (3, 9), 7),
        ("POPC R4, R16", (0xF0F0,), 8),
        ("FLO.U32 R4, R16", (0x0001_0000,), 16),
        ("PRMT R4, R16, 0x5410, R17", (0xAAAA1111, 0xBBBB2222), 0x22221111),
        ("SGXT R4, R16, 0x8", (0x80,), 0xFFFFFF80),
        ("BMSK R4, R16, R17", (4, 3), 0x70),
        ("ISETP.GE.AND P0, P1, R16, 0x5, PT\nSEL R4, R16, 0x9, P1", (3,), 3),
        ("ISETP.NE.AND P3, PT, R16, RZ, PT\nP2R R4, PR, RZ, 0x8", (1,), 8),
        ("R2P PR, R16, 0x6\nSEL R4, 0x1, 0x2, P2", (4,), 1),
        ("PLOP3.LUT P0, PT, PT, PT, PT, 0x8, 0x0\nSEL R4, 0x1, 0x2, P0", (), 2),
        ("PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0\nSEL R4, 0x1, 0x2, P0", (), 1),
        ("HFMA2.MMA R4, -RZ, RZ, 1.875, 0", (), 0x3F800000),
        ("LDC.64 R4, c[0x0][0x210]\nMOV R4, R5", (1, 7), 7),
        ("LDC.128 R4, c[0x0][0x210]\nMOV R4, R7", (1, 2, 3, 9), 9),
        ("MOV R2, 0x4\nLDC R4, c[0x0][R2+0x210]", (1, 5), 5),
        ("MOV R4, 0x1\nISETP.EQ.AND P0, PT, R16, 0x3, PT\n@P0 MOV R4, 0x2", (3,), 2),
        ("MOV R4, 0x1\nISETP.EQ.AND P0, PT, R16, 0x3, PT\n@!P0 MOV R4, 0x2", (3,), 1),
        ("VOTE.ANY R4, PT, PT", (), MASK),
        ("S2R R4, SR_LANEID\nSHFL.IDX PT, R4, R4, 0x5, 0x1f", (), 5),
        ("S2R R4, SR_LANEID\nREDUX.SUM UR4, R4\nMOV R4, UR4", (), 496),
        ("STL [R1+0x8], R16\nMOV R16, RZ\nLDL R4, [R1+0x8]", (77,), 77),
        ("STS [RZ+0x40], R16\nLDS R4, [RZ+0x40]", (78,), 78),
    ],
)
def test_instructions_compute(code: str, parameters: tuple[int, ...], expected: int) -> None:
    assert result_of(code, *parameters) == expected
