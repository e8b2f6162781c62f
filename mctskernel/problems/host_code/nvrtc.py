"""Host code of CUDA C++ kernels that NVRTC compiles on the first call, with the library that PyTorch brings.

It takes a second where `load_inline` takes a minute, and needs neither nvcc nor a C++ compiler. Launches go through the
driver, on PyTorch's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.core.kernel import Kernel
from mctskernel.problems.host_code.cuda import TENSOR_MAP, launched_signature
from mctskernel.problems.host_code.expressions import TEMPLATES, HostCodeError, raw_literal
from mctskernel.problems.host_code.launch import WrittenLaunch
from mctskernel.profiling.build import standalone, system_headers

IMPORTED = frozenset({"ctypes", "functools", "glob", "os", "torch"})
DEFINED = frozenset({"_HEADERS", "_SOURCE", "_TYPES", "_Config", "_check", "_functions", "_launch", "_map"})
"""The names that a module imports and defines."""

_TYPES = {
    "bool": "c_bool",
    "char": "c_byte",
    "short": "c_short",
    "int": "c_int",
    "unsigned": "c_uint",
    "unsigned int": "c_uint",
    "long": "c_long",
    "long long": "c_longlong",
    "unsigned long": "c_ulong",
    "unsigned long long": "c_ulonglong",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def write_host(kernel: Kernel, launches: Sequence[WrittenLaunch], first: str) -> tuple[str, list[str]]:
    """What compiles and launches, on a `first` tensor's device, and each launch's statement. Raises HostCodeError."""
    types = {}
    for launch in launches:
        found = launched_signature(kernel, launch).types
        for each in found:
            if not (each.endswith("*") or each == TENSOR_MAP or each in _TYPES):
                raise HostCodeError(
                    f"The launch of '{launch.kernel}' can't pass a parameter of the type {each}."
                )
        names = (
            "None" if each == TENSOR_MAP else f"ctypes.{'c_void_p' if each.endswith('*') else _TYPES[each]}"
            for each in found
        )
        types[launch.kernel] = f"({''.join(f'{each}, ' for each in names).rstrip()})"
    written = ", ".join(f"{name!r}: {each}" for name, each in types.items())
    source = standalone(kernel.source)
    headers = "".join(
        f"\n    {name!r}: {raw_literal(each)}," for name, each in system_headers(source).items()
    )
    text = TEMPLATES.get_template("nvrtc.txt").render(
        source=raw_literal(source), headers=f"{{{headers}}}", types=f"{{{written}}}"
    )
    return text, [_statement(launch, first) for launch in launches]


def _statement(launch: WrittenLaunch, first: str) -> str:
    def listed(parts: Sequence[str]) -> str:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    words = [
        f"{first}.device",
        repr(launch.kernel),
        listed(launch.grid),
        listed(launch.block),
        launch.shared,
        listed([f"_map({each.source})" if each.is_map else each.source for each in launch.arguments]),
        *([f"cluster={listed(launch.cluster)}"] if launch.cluster else []),
        *(["programmatic=True"] if launch.programmatic else []),
    ]
    return f"_launch({', '.join(words)})"
