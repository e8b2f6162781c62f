"""The texts of modifiers that several instructions share."""

from __future__ import annotations

from collections.abc import Mapping

_NONE = ("?",)

CHOICES: Mapping[str, tuple[str, ...]] = {
    "denormal": ("", ".FTZ", ".FMZ", "?"),
    "round": ("", ".RM", ".RP", ".RZ"),
    "logic": (".AND", ".OR", ".XOR", "?"),
    "compare": (".F", ".LT", ".EQ", ".LE", ".GT", ".NE", ".GE", ".T"),
    "fcompare": (
        ".F", ".LT", ".EQ", ".LE", ".GT", ".NE", ".GE", ".NUM",
        ".NAN", ".LTU", ".EQU", ".LEU", ".GTU", ".NEU", ".GEU", ".T",
    ),
    "size": (".U8", ".S8", ".U16", ".S16", "", ".64", ".128", "?"),
    "evict": (".EF", "", ".EL", ".LU", ".EU", ".NA", "?", "?"),
    "load": (
        "", "?", "?", "?", ".CONSTANT", ".STRONG.SM", "?", ".STRONG.GPU",
        ".MMIO.GPU", "?", ".STRONG.SYS", "?", ".MMIO.SYS", "?", "?", "?",
    ),
    "store": (
        "", "?", "?", "?", "?", ".STRONG.SM", "?", ".STRONG.GPU",
        ".MMIO.GPU", "?", ".STRONG.SYS", "?", ".MMIO.SYS", "?", "?", "?",
    ),
    "dcompare": (
        ".MIN", ".LT", ".EQ", ".LE", ".GT", ".NE", ".GE", ".NUM",
        ".NAN", ".LTU", ".EQU", ".LEU", ".GTU", ".NEU", ".GEU", ".MAX",
    ),
    "function": (
        ".COS", ".SIN", ".EX2", ".LG2", ".RCP", ".RSQ", ".RCP64H", ".RSQ64H", ".SQRT", ".TANH",
        "?", "?", "?", "?", "?", "?",
    ),
    "operation": (".ADD", ".MIN", ".MAX", ".INC", ".DEC", ".AND", ".OR", ".XOR"),
    "exchange": (".ADD", ".MIN", ".MAX", ".INC", ".DEC", ".AND", ".OR", ".XOR", ".EXCH", *_NONE * 7),
    "packed": (".F16x2.RN", ".F16x4.RN", ".F16x8.RN", ".BF16x2.RN", ".BF16x4.RN", ".BF16x8.RN", "?", "?"),
    "wide": ("?", "?", "?", "?", "", ".64", ".128", "?"),
    "integers": (".U8", ".S8", ".U16", ".S16", ".U32", "", ".U64", ".S64"),
    "float": ("?", ".F16", "", ".F64", ".BF16", "?", "?", "?"),
    "floats": ("?", ".F16", ".F32", ".F64", ".BF16", "?", "?", "?"),
    "single": ("?", ".F16", "", "?", ".BF16", "?", "?", "?"),
    "half": ("?", ".F16", "", *_NONE * 5),
    "swapped": ("", ".S32", ".64", *_NONE * 5),
    "towards": ("", ".FLOOR", ".CEIL", ".TRUNC"),
    "single_function": (
        ".COS", ".SIN", ".EX2", ".LG2", ".RCP", ".RSQ", "?", "?", ".SQRT", ".TANH", *_NONE * 6,
    ),
    "reduced": ("", ".S32", ".U64", ".S64", ".F16.RN", ".F32.RN", ".F32.FTZ.RN", ".F64.RN"),
    "integer": ("", ".S32", ".64", ".S64", "?", "?", "?", "?"),
    "atomic": (
        ".ADD", ".MIN", ".MAX", ".INC", ".DEC", ".AND", ".OR", ".XOR", ".EXCH", ".SAFEADD",
        "?", "?", "?", "?", "?", "?",
    ),
    "any": ("", ".S32", ".64", ".F32.FTZ.RN", ".F16x2.RN", ".S64", ".F64.RN", *_NONE * 9),
    "added": (
        ".F16x2.RN", ".F16x4.RN", ".F16x8.RN", ".BF16x2.RN", ".BF16x4.RN", ".BF16x8.RN", "?", "?", "?",
        ".F32.FTZ.RN", ".F32x2.FTZ.RN", ".F32x4.FTZ.RN", ".F32.RN", ".F32x2.RN", ".F32x4.RN", ".F64.RN",
    ),
    "ahead": ("", ".LTC64B", ".LTC128B", ".LTC256B"),
}  # fmt: skip
