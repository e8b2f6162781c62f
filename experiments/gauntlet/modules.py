"""The gauntlet's PyTorch modules: modules that cheat and unusual honest ones, run by the module evaluator.

`corpus/pytorch` has `references/`, `cheats/` and `honest/`. The docstring of a module describes it in its first
line, then `Reference: NAME`; for a cheat `Caught by: GUARD` (or an outcome, or `no gain` where it may be accepted
as long as it claims no speed-up); where needed `Runs on: gpu` (or `cpu`) and `Own kernels: asked for`.
"""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.experiments.gauntlet.corpus import CORPUS, CorpusError
from mctskernel.experiments.gauntlet.run import Report, Result, Verdict
from mctskernel.profiling.pytorch.client import ForkServer, fork_server
from mctskernel.profiling.pytorch.evaluator import Limits, ModuleVerdict, Settings, open_evaluator

NO_GAIN = "no gain"
LIMITS = Limits(load_seconds=120.0, call_seconds=5.0)
RUNS = 5


@dataclass(frozen=True)
class ModuleEntry:
    """One module; `caught_by` is empty for an honest one, `where` is `cpu`, `gpu`, or empty for both."""

    file: Path
    text: str
    reference: Path
    caught_by: str = ""
    where: str = ""
    own_kernels: bool = False

    @property
    def label(self) -> str:
        """The entry's place in the corpus: `pytorch/cheats/late_thread`."""
        return f"pytorch/{self.file.parent.name}/{self.file.stem}"

    def shows_on(self, place: str) -> bool:
        return self.where in ("", place)


def read_modules(folder: Path = CORPUS / "pytorch") -> list[ModuleEntry]:
    """Every module of the corpus, cheats first. Raises CorpusError."""
    files = (*sorted(folder.glob("cheats/*.py")), *sorted(folder.glob("honest/*.py")))
    return [_entry(file, folder / "references") for file in files]


def run_modules(
    entries: Sequence[ModuleEntry],
    device: str,
    follow: Callable[[Result], None],
    server: ForkServer | None = None,
) -> Report:
    """Evaluate every entry that can be shown on a `model` (the CPU) or a `gpu`; `follow` gets each result.

    Raises DeviceError for a machine that lacks something.
    """
    place, torch_device = ("gpu", "cuda") if device == "gpu" else ("cpu", "cpu")
    began = time.monotonic()
    shown = sorted((entry for entry in entries if entry.shows_on(place)), key=_group)
    results: dict[str, Result] = {}
    if server is None and shown:
        with fork_server() as opened:
            return run_modules(entries, device, follow, opened)
    for _, group in groupby(shown, _group):
        alike = list(group)
        settings = Settings(torch_device, runs=RUNS, own_kernels=alike[0].own_kernels, limits=LIMITS)
        with open_evaluator(alike[0].reference.read_text(), settings, server) as evaluator:
            for entry in alike:
                started = time.monotonic()
                verdict = evaluator.evaluate(entry.file.read_text())
                results[entry.label] = _result(entry, place, verdict, time.monotonic() - started)
                follow(results[entry.label])
    return Report(
        tuple(results[entry.label] for entry in entries if entry.label in results),
        {},
        time.monotonic() - began,
        tuple(entry.label for entry in entries if not entry.shows_on(place)),
    )


def _group(entry: ModuleEntry) -> tuple[str, bool]:
    return str(entry.reference), entry.own_kernels


def _entry(file: Path, references: Path) -> ModuleEntry:
    text, *lines = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines() or [""]
    header = dict(line.split(": ", 1) for line in lines if ": " in line)
    reference = references / f"{header.get('Reference', '')}.py"
    caught_by = header.get("Caught by", "")
    known = {*map(str, Guard), *map(str, Outcome), NO_GAIN}
    if not reference.is_file() or caught_by not in (known if file.parent.name == "cheats" else {""}):
        raise CorpusError(
            f"{file}: its docstring needs 'Reference: NAME', and of a cheat 'Caught by: GUARD'."
        )
    return ModuleEntry(file, text, reference, caught_by, header.get("Runs on", ""), "Own kernels" in header)


def _result(entry: ModuleEntry, place: str, verdict: ModuleVerdict, seconds: float) -> Result:
    evaluation, speedup = verdict.evaluation, verdict.speedup
    gains = evaluation.ok and (entry.caught_by != NO_GAIN or (speedup is not None and speedup.low > 1.0))
    if not entry.caught_by:
        came_to = Verdict.ACCEPTED if evaluation.ok else Verdict.WRONGLY_REFUSED
    else:
        came_to = Verdict.LET_THROUGH if gains else Verdict.CAUGHT
    caught_by = str(evaluation.guard or evaluation.outcome)
    return Result(
        entry.label,
        "pytorch",
        not entry.caught_by,
        entry.text,
        entry.reference.stem,
        place,
        came_to,
        str(evaluation.outcome),
        evaluation.guard,
        "" if evaluation.ok else "evaluation",
        evaluation.message or evaluation.quarantine,
        seconds,
        unexpected=came_to is Verdict.CAUGHT and entry.caught_by not in (caught_by, NO_GAIN),
        log_gain=math.log(speedup.ratio) if speedup is not None and speedup.ratio > 0 else None,
    )
