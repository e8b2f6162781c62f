"""How much machine code is decoded without nvdisasm, and what that costs.

    python -m mctskernel.experiments.decoded_kernels [--architecture sm_90] [--variants DIR] [--check]

Takes the starting kernels of the built-in tasks, CUDA C++ and Triton, or with `--variants` those of a folder with
`variants.jsonl`. `--check` disassembles with nvdisasm as well and counts the kernels whose instructions differ in
anything but how a branch's target is written. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mctskernel.core.task_file import languages, load_task
from mctskernel.experiments.subjects.measured_kernels import measured_kernel
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.machine_code import nvdisasm
from mctskernel.profiling.machine_code.disassembly import decoded
from mctskernel.profiling.machine_code.instructions import Instruction
from mctskernel.profiling.machine_code.nvdisasm import Disassembly
from mctskernel.profiling.stages import Stages
from mctskernel.tasks import builtin_tasks
from mctskernel.variants import read_variants


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; returns the exit status."""
    parser = argparse.ArgumentParser(description="Decode machine code without nvdisasm.")
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--check", action="store_true", help="compare with nvdisasm")
    parser.add_argument("--variants", type=Path, help="a folder with variants.jsonl, instead of the tasks")
    options = parser.parse_args(arguments)
    if options.variants:
        cubins = dict(_variants(options.variants, options.architecture))
    else:
        cubins = dict(_starting_kernels(options.architecture))
    for image in list(cubins.values())[:1]:
        decoded(image)  # reads the tables
    seconds, unknown, different = [], [], []
    for name, image in cubins.items():
        began = time.perf_counter()
        found = decoded(image)
        seconds.append(time.perf_counter() - began)
        if found is None:
            unknown.append(name)
        elif options.check and _essence(found) != _essence(nvdisasm.disassemble(image)):
            different.append(name)
    print(f"{len(cubins)} cubins, {len(cubins) - len(unknown)} decoded without nvdisasm")
    print(f"milliseconds: median {1e3 * statistics.median(seconds):.1f}, most {1e3 * max(seconds):.1f}")
    for label, names in (("needs nvdisasm", unknown), ("differs", different)):
        for name in names:
            print(f"{label}: {name}", file=sys.stderr)
    return 1 if different else 0


def _starting_kernels(architecture: str) -> Iterator[tuple[str, bytes]]:
    for name, folder in builtin_tasks().items():
        for language in languages(folder):
            task = load_task(folder, language)
            try:
                candidate = prepare(task, task.starting_kernel, architecture, Stages())
            except RefusedError as refusal:
                print(f"refused: {name} {language.value}: {refusal}", file=sys.stderr)
                continue
            for index, made in enumerate(candidate.builds):
                yield f"{name} {language.value} {index}", made.cubin


def _variants(folder: Path, architecture: str) -> Iterator[tuple[str, bytes]]:
    for variant in read_variants(folder):
        measured = measured_kernel(folder, variant)
        try:
            candidate = prepare(measured.task, measured.kernel, architecture, Stages())
        except RefusedError as refusal:
            print(f"refused: {variant.name}: {refusal}", file=sys.stderr)
            continue
        for index, made in enumerate(candidate.builds):
            yield f"{variant.name} {index}", made.cubin


def _essence(found: Disassembly) -> dict[str, list[Instruction]]:
    """The instructions of each function, without the operands of those that name a place in the code."""
    return {
        name: [
            replace(each, operands="") if each.target is not None or each.mnemonic == "RET" else each
            for each in function.instructions
        ]
        for name, function in found.functions.items()
    }


if __name__ == "__main__":
    sys.exit(main())
