"""How well the model ranks kernels whose H100 times are known.

    python -m mctskernel.experiments.model_against_h100 DIR [--family sgemm] [--every 4] [--out results.jsonl]

DIR holds `variants.jsonl`, one variant a line (`source`, `macros`, `grid`, `block`, measured `us`, `family`),
and the sources that it names. For each family this prints the rank correlation (Spearman) of modelled with
measured time, and the regret: the measured time of the model's first pick, and of the best among its first
five, over that of the true best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Launch, LaunchPlan, resolve
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulator import parse_ptx
from mctskernel.profiling.machine_code.nvdisasm import start_disassembly
from mctskernel.profiling.model.modelled import Unmodelled, model_kernel
from mctskernel.report.comparison import rank_correlation

BUFFER_FLOATS: Mapping[str, tuple[int, int, int]] = {
    "sgemm": (4194304, 4194304, 4194304),
    "transpose": (67108864, 1, 67108864),
    "reduce": (67108864, 1, 4194304),
    "softmax": (33554432, 1, 33554432),
    "stencil": (67108864, 1, 67108864),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compare the model with measured H100 times.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=sorted(BUFFER_FLOATS))
    parser.add_argument("--every", type=int, default=1, help="take every n-th variant")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write one JSON object per variant")
    options = parser.parse_args(arguments)
    variants = read_variants(options.folder, options.family)[:: options.every]
    with ProcessPoolExecutor(options.workers) as pool:
        rows = list(pool.map(_modelled, variants))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report(rows)
    return 0


def read_variants(folder: Path, family: str | None = None) -> list[dict[str, Any]]:
    """The variants of a folder, each with the text that it is compiled from."""
    lines = (folder / "variants.jsonl").read_text().splitlines()
    variants = [json.loads(line) for line in lines if line.strip()]
    chosen = [variant for variant in variants if family in {None, variant["family"]}]
    return [{**variant, "text": _text(folder, variant)} for variant in chosen]


def _text(folder: Path, variant: Mapping[str, Any]) -> str:
    defines = "".join(f"#define {name} {value}\n" for name, value in variant["macros"].items())
    return f"{defines}#line 1\n{(folder / variant['source']).read_text()}"


def _modelled(variant: Mapping[str, Any]) -> dict[str, Any]:
    """The model's answer for one variant: seconds, terms, counters, and what it cost."""
    row = {name: variant[name] for name in ("name", "family", "us")} | {"ncu": variant.get("ncu", {})}
    began = time.perf_counter()
    plan = LaunchPlan((Launch("k", tuple(variant["grid"]), tuple(variant["block"]), ("A", "B", "C")),))
    kernel, resolved = Kernel(variant["text"]), resolve(plan, {}, tuple("ABC"))
    built = build(kernel, ("k",))
    if isinstance(built, BuildFailure):
        return row | {"error": built.message}
    sizes = dict(zip("ABC", (4 * floats for floats in BUFFER_FLOATS[variant["family"]]), strict=True))
    candidate = Candidate(kernel, (resolved,), (built,), ((resolved.launches[0], 0),))
    module = parse_ptx(built.ptx)
    with start_disassembly(built.cubin) as pending:
        found = model_kernel(
            candidate,
            lambda _: module,
            lambda _: pending.result(),
            resolved,
            load_architecture("H100"),
            buffers=sizes,
            contents=lambda name: _zeros(sizes[name]),
        )
    if isinstance(found, Unmodelled):
        return row | {"error": found.message}
    return row | {
        "modelled_us": found.seconds * 1e6,
        "terms_us": {term: seconds * 1e6 for term, seconds in found.terms.items()},
        "counters": dict(found.counters),
        "diagnosis": found.diagnosis.summary,
        "stage_seconds": {**found.stage_seconds, "build": built.seconds},
        "seconds": time.perf_counter() - began,
    }


def _zeros(size: int) -> Array:
    return np.zeros(size // 4, dtype=np.float32)


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table by family, counters against the measured ones, and what the model cost."""
    print(
        f"{'family':10} {'n':>4} {'Spearman':>9} {'first':>7} {'best of 5':>9} {'time ratio (quartiles)':>24}"
    )
    for family in dict.fromkeys(row["family"] for row in rows):
        known = [row for row in rows if row["family"] == family and "modelled_us" in row]
        if len(known) < 2:
            continue
        measured = np.array([row["us"] for row in known])
        modelled = np.array([row["modelled_us"] for row in known])
        low, middle, high = np.percentile(modelled / measured, [25, 50, 75])
        correlation = rank_correlation(measured, modelled)
        first, fifth = (regret(measured, modelled, picks) for picks in (1, 5))
        print(
            f"{family:10} {len(known):4} {correlation:9.3f} {first:7.3f} {fifth:9.3f} "
            f"{low:8.2f} {middle:7.2f} {high:7.2f}"
        )
    _print_counters([row for row in rows if row.get("ncu") and "counters" in row])
    for row in rows:
        if "error" in row:
            print(f"failed: {row['name']}: {row['error']}", file=sys.stderr)
    _print_cost([row for row in rows if "seconds" in row])


def _print_counters(rows: Sequence[Mapping[str, Any]]) -> None:
    names = dict.fromkeys(name for row in rows for name in row["counters"] if name in row["ncu"])
    for name in names:
        ratios = [row["counters"][name] / row["ncu"][name] for row in rows if row["ncu"].get(name)]
        if ratios:
            within = sum(abs(ratio - 1.0) <= 0.1 for ratio in ratios) / len(ratios)
            quartiles = " ".join(f"{value:6.2f}" for value in np.percentile(ratios, [5, 25, 50, 75, 95]))
            print(f"{name:66} {within:5.0%} within 10 %; modelled over measured {quartiles}")


def _print_cost(rows: Sequence[Mapping[str, Any]]) -> None:
    stages = dict.fromkeys(stage for row in rows for stage in row["stage_seconds"])
    parts = [f"{stage} {_median(row['stage_seconds'][stage] for row in rows):.3f}" for stage in stages]
    print(f"median seconds: {_median(row['seconds'] for row in rows):.3f} ({', '.join(parts)})")


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def regret(measured: Array, modelled: Array, picks: int) -> float:
    """Measured time of the best among the model's first picks, over that of the true best."""
    chosen = np.argsort(modelled, kind="stable")[:picks]
    return float(measured[chosen].min() / measured.min())


if __name__ == "__main__":
    sys.exit(main())
