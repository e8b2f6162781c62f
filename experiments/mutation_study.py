"""Mutants of correct kernels: how many of them verification and final validation find, by kind.

    python -m mctskernel.experiments.mutation_study --out docs/results/mutation_study.md
    python -m mctskernel.experiments.mutation_study TASK... --device gpu --out FILE

Each mutant is a starting kernel in CUDA C++ with one change of its text, evaluated as the kernels of the gauntlet are.
Of those that survive the page says by how much their results are off, beside numpy's and the unchanged kernel's. Some
are no worse: they leave the same bytes, or are as accurate, on all inputs of a verification and a final validation.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import click
import numpy as np

from mctskernel.core.evaluation import Guard
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Array, Task
from mctskernel.core.task_file import load_task
from mctskernel.experiments.gauntlet.corpus import CORPUS, Entry
from mctskernel.experiments.gauntlet.run import Result, Venue, Verdict, run_gauntlet
from mctskernel.experiments.results import page, table
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.emulated_verification import LIMITS
from mctskernel.profiling.emulation import Stopped, emulated_outputs
from mctskernel.profiling.input_values import IN_TURN, Values
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case, check_outputs, draw_cases
from mctskernel.tasks.builtin import builtin_tasks, find_task

LARGE_ERROR = 8.0
"""How many times the usual error a mutant has at least that must be found."""

AS_ACCURATE = 1.1
"""How many times the usual error one has at most that is no worse."""

WORSE = 1.11
"""What is said of one that is no less accurate on drawn numbers, but wrong on others."""

ERROR_SEED = 11

NARROW = """
__device__ static float narrow(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000);
}
"""
"""Rounds to TF32."""

_PLAN = re.compile(r"/\*.*?\*/", re.DOTALL)
_OPERAND = r"[A-Za-z_]\w*(?:\[[^][]*\]|\.[xyz]\b)?"

Change = Callable[[re.Match[str]], str]

MUTATIONS: Mapping[str, Sequence[tuple[str, Change]]] = {
    "dropped term": (
        (rf"(?<=[\w\])]) [+-] {_OPERAND}(?=[;,)\s])", lambda _: ""),
        (r"\+= (?!1;)", lambda _: "= "),
    ),
    "off by one": (
        (r"(?<=[\w\])]) < (?=[A-Za-z_])", lambda _: " <= "),
        (r"(?<=[\w\])]) < ([A-Za-z_]\w*)(?=[;) ])", lambda found: f" < {found[1]} - 1"),
        (r"(?<=int )(\w+) = 0;", lambda found: f"{found[1]} = 1;"),
    ),
    "lower precision": (
        (r"(?<=[=(*+] )([a-z]\w*\[[^][]*\])(?= \*|;|\))", lambda found: f"narrow({found[1]})"),
        (r"(?<=\* )([a-z]\w*\[[^][]*\])", lambda found: f"narrow({found[1]})"),
        (r"\+= ([^;=]+);", lambda found: f"+= narrow({found[1]});"),
    ),
    "wrong axis": (
        (r"(?<=threadIdx\.)x|(?<=blockIdx\.)x", lambda _: "y"),
        (r"(?<=threadIdx\.)y|(?<=blockIdx\.)y", lambda _: "x"),
        (rf"(?<=\[)({_OPERAND}) \* (\w+) \+ ({_OPERAND})(?=\])", lambda f: f"{f[3]} * {f[2]} + {f[1]}"),
    ),
    "missing tail": (
        (r"(?<=[\w\])]) < ([A-Za-z_]\w*)(?=[;) ])", lambda found: f" < ({found[1]} & ~3)"),
        (
            r"(?<=[\w\])]) < ([A-Za-z_]\w*)(?=[;) ])",
            lambda found: f" < ({found[1]} > 4096 ? 4096 : {found[1]})",
        ),
    ),
    "wrong constant": (
        (
            r"\b(\d*[1-9]\d*\.\d*(?:e-?\d+)?|0\.\d*[1-9]\d*)f\b",
            lambda found: f"({found[1]}f * 1.01f + 1e-6f)",
        ),
        (r"\b(epsilon|eps)\b(?=\)|;)", lambda found: f"({found[1]} * 2)"),
    ),
    "wrong rounding": (
        (r"_rn\b", lambda _: "_rz"),
        (r"\b(rintf|roundf|nearbyintf)\b", lambda _: "truncf"),
        (r"(\w+\[[^=;]*\]) = ([^;=]+);", lambda found: f"{found[1]} = ({found[2]}) * 1.00001f;"),
    ),
    "skipped results": (
        (r"(\w+)\[([^=;]*)\] = ([^;=]+);", lambda f: f"if (({f[2]}) % 1000 != 997) {f[1]}[{f[2]}] = {f[3]};"),
    ),
    "wrong operator": (
        (r"\bfmaxf\b", lambda _: "fminf"),
        (r"(?<=[\w\])]) - (?=[A-Za-z_])", lambda _: " + "),
        (r"(?<=[\w\])]) \* (?=[A-Za-z_]\w*\[)", lambda _: " + "),
    ),
}
"""By kind: patterns in a kernel's text, and what takes the place of one match."""


@dataclass(frozen=True)
class Mutant:
    """A task's folder, a kind of change, the changed source, and the line that changed, before and after."""

    folder: Path
    kind: str
    source: str
    change: str


def mutants_of(folder: Path) -> Iterator[Mutant]:
    """Every mutant of a task's starting kernel in CUDA C++, the launch plan left as it is."""
    source = load_task(folder, Language.CUDA).starting_kernel.source
    plan = _PLAN.match(source)
    start = plan.end() if plan else 0
    for kind, patterns in MUTATIONS.items():
        for pattern, change in patterns:
            for found in re.finditer(pattern, source[start:]):
                begin, end = start + found.start(), start + found.end()
                line = source[: begin + 1].count("\n")
                changed = source[:begin] + change(found) + source[end:]
                before, after = (text.splitlines()[line].strip() for text in (source, changed))
                if not before.startswith(("//", "#include")) and before != after:
                    yield Mutant(folder, kind, _with_helper(changed, start), f"{before} -> {after}")


def chosen_mutants(folders: Sequence[Path], count: int, rng: np.random.Generator) -> list[Mutant]:
    """So many mutants, of all kinds and tasks in turn."""
    by_kind: dict[str, dict[Path, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for folder in folders:
        for mutant in mutants_of(folder):
            by_kind[mutant.kind][folder].append(mutant)
    shuffled = (
        _in_turn([each[index] for index in rng.permutation(len(each))] for each in tasks.values())
        for tasks in by_kind.values()
    )
    return list({mutant.source: mutant for mutant in _in_turn(shuffled)}.values())[:count]


def largest_error(folder: Path, source: str, architecture: str) -> float:
    """The largest error of a kernel over the plain reference's or the starting kernel's, whichever is larger.

    On drawn numbers of all small shapes. Of special values too: 0 where it leaves the same bytes as the starting
    kernel, `WORSE` at least where it fails, infinite where it crashes or leaves no numbers.
    """
    task, cases, unchanged = _cases_of(folder, architecture)
    changed = Pricing(task, load_architecture(architecture), 0).prepare(Kernel(source), Stages())
    errors: dict[tuple[str, int], float] = {}
    usual: dict[tuple[str, int], float] = {}
    worst, same = 0.0, True
    for case, theirs in zip(cases, unchanged, strict=True):
        ours = emulated_outputs(task, changed.candidate, changed.modules, case, limits=LIMITS)
        if isinstance(ours, Stopped):
            return float("inf")
        check = check_outputs(case, ours)
        if not check.passed:
            worst = max(worst, check.error if np.isinf(check.error) else WORSE)
        for name, truth in case.expected.items():
            same &= ours[name].tobytes() == theirs[name].tobytes()
            if case.values is Values.DRAWN:
                rounding = 2.0**-25 * _distance(truth, np.zeros_like(truth))
                distances = [_distance(each, truth) for each in (case.plain[name], theirs[name])]
                errors[name, case.seed] = _distance(ours[name], truth)
                usual[name, case.seed] = max(rounding, *distances)
    if same:
        return 0.0
    ratios = (error / usual[each] if usual[each] else np.inf for each, error in errors.items() if error)
    return max(worst, *ratios)


@functools.cache
def _cases_of(folder: Path, architecture: str) -> tuple[Task, Sequence[Case], Sequence[Mapping[str, Array]]]:
    """A task, cases of its small shapes, and what its starting kernel leaves there."""
    task = load_task(folder, Language.CUDA)
    cases = [
        case
        for shapes in (task.verify_shapes, task.held_out_shapes)
        for case in draw_cases(task, shapes, ERROR_SEED, draws=2, turns=len(IN_TURN))
    ]
    start = Pricing(task, load_architecture(architecture), 0).prepare(task.starting_kernel, Stages())
    found = [emulated_outputs(task, start.candidate, start.modules, each, limits=LIMITS) for each in cases]
    kept = [(case, each) for case, each in zip(cases, found, strict=True) if not isinstance(each, Stopped)]
    return task, [case for case, _ in kept], [each for _, each in kept]


@click.command()
@click.argument("tasks", nargs=-1)
@click.option("--mutants", "count", type=click.IntRange(min=1), default=220, show_default=True)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="model", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="The GPU of --device model.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Write the page here.")
def main(
    *,
    tasks: tuple[str, ...],
    count: int,
    device: str,
    architecture: str,
    workers: int,
    seed: int,
    out: Path,
) -> None:
    """Evaluate mutants of the starting kernels of TASKS, or of the built-in tasks and the gauntlet's."""
    known = (
        *map(find_task, builtin_tasks()),
        *sorted(path.parent for path in CORPUS.glob("tasks/*/task.toml")),
    )
    folders = [find_task(name) for name in tasks] or [
        each for each in known if (each / "kernel.cu").is_file()
    ]
    mutants = chosen_mutants(folders, count, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory(prefix="mctskernel-mutants-") as scratch:
        entries = [_entry(Path(scratch, f"{number}.cu"), each) for number, each in enumerate(mutants)]
        of = {entry.label: mutant for entry, mutant in zip(entries, mutants, strict=True)}

        def follow(result: Result) -> None:
            click.echo(
                f"{of[result.label].folder.name}, {of[result.label].kind}: {result.guard or result.verdict}"
            )

        results = run_gauntlet(entries, Venue(device, architecture, seed, workers), follow).results
    errors = {
        each.label: largest_error(of[each.label].folder, of[each.label].source, architecture)
        for each in results
        if each.verdict is Verdict.ACCEPTED
    }
    out.write_text(_document(results, of, errors, device) + "\n", encoding="utf-8")


def _document(
    results: Sequence[Result], of: Mapping[str, Mutant], errors: Mapping[str, float], device: str
) -> str:
    built = [each for each in results if each.guard is not Guard.COMPILER]
    worse = [each for each in errors.values() if each > AS_ACCURATE]
    refused = len(built) - len(errors)
    rows = [_row(kind, [each for each in built if of[each.label].kind == kind], errors) for kind in MUTATIONS]
    survivors = sorted(errors.items(), key=lambda each: -each[1])
    return page(
        "Mutants of correct kernels",
        f"{len(built)} mutants of {len({of[each.label].folder for each in built})} tasks compile. On the device "
        f"`{device}` verification and final validation refused {refused} of them. Of the others "
        f"{sum(each == 0 for each in errors.values())} leave the same bytes as the unchanged kernel on all inputs at "
        f"small shapes, and {sum(0 < each <= AS_ACCURATE for each in errors.values())} are as accurate. Of the "
        f"{refused + len(worse)} that are neither, {refused / max(1, refused + len(worse)):.1%} were refused; "
        f"{sum(each > LARGE_ERROR for each in worse)} of those accepted are off by more than {LARGE_ERROR:g} times "
        "what the reference in the inputs' precision or the unchanged kernel is.",
        table(("kind", "mutants", "refused", "same bytes", "as accurate", "worse", "refused by"), rows),
        "Those that were accepted, with their largest error over the larger of the reference's and the unchanged "
        "kernel's; 0 where all bytes are the same:",
        table(
            ("task", "kind", "change", "error"),
            [_survivor(of[label], error) for label, error in survivors],
        ),
    )


def _row(kind: str, found: Sequence[Result], errors: Mapping[str, float]) -> tuple[str, ...]:
    accepted = [errors[each.label] for each in found if each.label in errors]
    guards = Counter(str(each.guard) for each in found if each.label not in errors)
    counts = (
        len(found),
        len(found) - len(accepted),
        sum(each == 0 for each in accepted),
        sum(0 < each <= AS_ACCURATE for each in accepted),
        sum(each > AS_ACCURATE for each in accepted),
    )
    caught = ", ".join(f"{guard} {number}" for guard, number in guards.most_common())
    return (kind, *map(str, counts), caught)


def _survivor(mutant: Mutant, error: float) -> tuple[str, ...]:
    change = "`" + mutant.change.replace("|", "\\|") + "`"
    return (mutant.folder.name, mutant.kind, change, f"{error:.3g}")


def _entry(file: Path, mutant: Mutant) -> Entry:
    file.write_text(mutant.source)
    return Entry(file.stem, Language.CUDA, honest=True, text=mutant.change, task=mutant.folder, file=file)


def _with_helper(source: str, start: int) -> str:
    return source[:start] + NARROW + source[start:] if "narrow(" in source else source


def _in_turn(streams: Iterable[Sequence[Mutant]]) -> list[Mutant]:
    """The first of each, then the second of each, and so on."""
    return [mutant for each in zip_longest(*streams) for mutant in each if mutant is not None]


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(
            np.nan_to_num(np.abs(one.astype(np.float64) - other.astype(np.float64))).max(initial=0.0)
        )


if __name__ == "__main__":
    main()
