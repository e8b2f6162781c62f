"""The structures are laid out as in NVIDIA's headers, which come with the library."""

from __future__ import annotations

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from mctskernel.profiling.gpu import cupti_api as api

HEADERS = ("cupti_profiler_target.h", "cupti_target.h", "cupti_profiler_host.h", "cupti_range_profiler.h")


def header_folder() -> Path | None:
    try:
        package = distribution("nvidia-cuda-cupti")
    except PackageNotFoundError:
        return None
    found = [file for file in package.files or () if file.name == HEADERS[0]]
    return Path(str(package.locate_file(found[0]))).parent if found else None


def test_every_structure_is_laid_out_as_in_the_headers(tmp_path: Path) -> None:
    folder, compiler = header_folder(), shutil.which("g++")
    if folder is None or compiler is None:
        pytest.skip("needs g++ and the headers of nvidia-cuda-cupti")
    # The headers want a handful of the driver's types; its own header comes with another package.
    (tmp_path / "cuda.h").write_text(
        "#pragma once\ntypedef int CUdevice; typedef struct CUctx_st* CUcontext;\n"
        "typedef struct CUmod_st* CUmodule; typedef struct CUfunc_st* CUfunction; typedef int CUresult;\n"
        "typedef struct CUstream_st* CUstream; typedef struct { char bytes[16]; } CUuuid;\n"
    )
    structures = api.Params.__subclasses__()
    lines = [f"#include <{header}>" for header in HEADERS] + ["#include <cstdio>", "int main() {"]
    for structure in structures:
        name = structure.STRUCTURE
        lines.append(f'std::printf("%zu\\n", (size_t){name}_STRUCT_SIZE);')
        lines += [
            f'std::printf("%zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
            for field in field_names(structure)
        ]
    source = tmp_path / "layouts.cpp"
    source.write_text("\n".join([*lines, "}"]))
    program = tmp_path / "layouts"
    subprocess.run(
        [compiler, "-std=c++17", f"-I{tmp_path}", f"-I{folder}", source, "-o", program], check=True
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    for structure in structures:
        # Later versions add fields at the end, and take a smaller size for an older program's.
        assert int(printed.pop(0)) >= structure().structSize, structure
        for name in field_names(structure):
            field = getattr(structure, name)
            assert printed.pop(0) == f"{field.offset} {field.size}", (structure, name)


def field_names(structure: type[api.Params]) -> list[str]:
    own = structure._fields_ if structure._fields_ is not api.Params._fields_ else []
    return [name for name, *_ in (*api.Params._fields_, *own)]
