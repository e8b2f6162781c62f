"""The gauntlet: its corpus, its verdicts, and a dozen of its kernels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source, Timing
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.experiments.gauntlet.corpus import read_corpus
from mctskernel.experiments.gauntlet.run import Report, Result, Venue, Verdict, run_gauntlet
from mctskernel.profiling.gpu import worker
from tests.conftest import KERNEL, REFERENCE, TASK_TOML

DOZEN = (
    "cuda/cheats/allocates_from_the_heap cuda/cheats/assembler_escapes cuda/cheats/huge_scratch "
    "cuda/cheats/includes_a_host_file cuda/cheats/nothing_written cuda/cheats/reads_behind_the_row "
    "cuda/cheats/scratch_in_the_input cuda/cheats/warp_without_synchronisation cuda/cheats/zeros "
    "cuda/cheats/without_the_largest triton/cheats/host_code cuda/honest/in_place_in_two_steps"
).split()
"""Cheats of one task that most guards catch, and an honest kernel that is evaluated quickly."""

OK = Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("n=4096", 1e-6, 1e-6, 1e-6),))
SLOW = Timing("n=77", 3e-4, 3e-4, 3e-4, baseline_seconds=1e-4)
WRONG = Evaluation(Outcome.WRONG_RESULT, Source.MODELLED, "It is wrong.", guard=Guard.COMPARISON)


def ignore(_: Result) -> None:
    """Follows nothing."""


def write_corpus(folder: Path, cheats: dict[str, str], honest: dict[str, str]) -> Path:
    """A corpus of CUDA C++ over the task `double`: each entry a name and its source."""
    task = folder / "tasks" / "double"
    task.mkdir(parents=True)
    (task / "task.toml").write_text(TASK_TOML)
    (task / "reference.py").write_text(REFERENCE)
    (task / "kernel.cu").write_text(KERNEL)
    cheat, odd = 'trick = "It cheats."\nguards = ["poisoned outputs"]', 'kernel = "Odd."'
    for kind, entries, words in (("cheats", cheats, cheat), ("honest", honest, odd)):
        where = folder / "cuda" / kind
        where.mkdir(parents=True)
        for name, source in entries.items():
            (where / f"{name}.cu").write_text(source)
        tables = (f'[{name}]\n{words}\ntask = "double"\n' for name in entries)
        (where / "entries.toml").write_text("\n".join(tables))
    return folder


def wrong_ones(labels: Callable[[str], bool]) -> list[str]:
    """The entries that didn't come to what they should, or were caught by another guard than they name."""
    entries = [entry for entry in read_corpus() if labels(entry.label)]
    results = run_gauntlet(entries, Venue("model"), ignore).results
    wrong = (each for each in results if not each.fine or each.unexpected)
    return [f"{each.label}: {each.verdict}, {each.guard}" for each in wrong]


def test_a_dozen_kernels_come_to_what_they_should() -> None:
    assert wrong_ones(DOZEN.__contains__) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first", "step"), [("cheats", 1, 3), ("honest", 8, 20)])
def test_a_sample_of_the_corpus_comes_to_what_it_should(kind: str, first: int, step: int) -> None:
    """The samples that take the least time; `mctskernel gauntlet` runs all of it, in many minutes."""
    labels = [entry.label for entry in read_corpus() if entry.honest is (kind == "honest")]
    assert wrong_ones(labels[first::step].__contains__) == []


@dataclass
class Scripted:
    """An executor whose answer to a kernel is named by the first word of its source."""

    opened: list[int] = field(default_factory=list)
    answers: dict[str, Evaluation | None] = field(default_factory=dict)
    validation: Evaluation = OK
    _current: Evaluation | None = None

    @contextmanager
    def open(self, _spec: DeviceSpec, _workers: int) -> Iterator[Executor]:
        self.opened.append(1)
        yield self  # type: ignore[misc] - as much of one as the gauntlet uses

    def submit(self, _ticket: int, kernel: Kernel) -> None:
        word = kernel.source.split()[0]
        if word == "broken":
            raise DeviceError("The device is gone.")
        self._current = self.answers.get(word, OK)

    def wait(self, _timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        return [] if self._current is None else [(0, self._current)]

    def final_validation(self, _kernel: Kernel, _baseline: Kernel) -> Evaluation:
        return self.validation

    def fingerprint(self) -> dict[str, str]:
        return {"device": "scripted"}


def judged(tmp_path: Path, executor: Scripted, cheat: str = "a", honest: str = "b") -> Report:
    entries = read_corpus(write_corpus(tmp_path, {"cheat": cheat}, {"honest": honest}))
    return run_gauntlet(entries, Venue("model", opener=executor.open), ignore)


LET, CAUGHT, NO, YES = Verdict.LET_THROUGH, Verdict.CAUGHT, Verdict.WRONGLY_REFUSED, Verdict.ACCEPTED
IMPOSSIBLE = replace(OK, quarantine="It can't be.", guard=Guard.ROOFLINE)
HELD_OUT_WRONG = replace(WRONG, checks=(Check("n=77", 1, passed=False, error=1.0),))


@pytest.mark.parametrize(
    ("executor", "verdicts", "stages"),
    [
        (Scripted(), (LET, YES), ("", "")),
        (Scripted(answers={"a": WRONG, "b": WRONG}), (CAUGHT, NO), ("evaluation", "evaluation")),
        (Scripted(answers={"a": IMPOSSIBLE}), (CAUGHT, YES), ("evaluation", "")),
        # An honest kernel may be slow.
        (Scripted(validation=replace(OK, timings=(SLOW,))), (CAUGHT, YES), ("final validation", "")),
        (Scripted(validation=HELD_OUT_WRONG), (CAUGHT, NO), ("final validation", "final validation")),
    ],
    ids=["passes", "wrong", "impossible time", "slow when held out", "wrong when held out"],
)
def test_verdicts(
    tmp_path: Path, executor: Scripted, verdicts: tuple[Verdict, ...], stages: tuple[str, ...]
) -> None:
    report = judged(tmp_path, executor)
    assert tuple(each.verdict for each in report.results) == verdicts
    assert tuple(each.stage for each in report.results) == stages
    assert report.fine is (verdicts == (Verdict.CAUGHT, Verdict.ACCEPTED))


def test_a_device_that_breaks_costs_one_entry_and_is_opened_again(tmp_path: Path) -> None:
    entries = [
        replace(entry, name=f"{entry.name}{i}", file=entry.file)
        for entry in read_corpus(write_corpus(tmp_path, {"cheat": "broken"}, {"honest": "b"}))
        for i in range(2)
    ]
    executor = Scripted()
    report = run_gauntlet(entries, Venue("model", opener=executor.open), ignore)
    assert [each.verdict for each in report.results] == [Verdict.NOT_EVALUATED] * 2 + [Verdict.ACCEPTED] * 2
    assert len(executor.opened) == 3
    assert not report.fine


def test_on_a_gpu_a_kernel_that_hangs_costs_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "executors"))
    monkeypatch.setattr(worker, "RUN_SECONDS", 2.0)

    def fake_gpu(spec: DeviceSpec, workers: int) -> GpuExecutor:
        return GpuExecutor(spec, workers=workers, service="fake_gpu:FakeGpu", check=None)

    cheats = {name: KERNEL.replace("twice", name) for name in ("hang", "lazy")}
    entries = read_corpus(write_corpus(tmp_path, cheats, {"start": KERNEL}))
    report = run_gauntlet(entries, Venue("gpu", opener=fake_gpu), ignore)
    assert {each.label.split("/")[-1]: (each.verdict, each.guard) for each in report.results} == {
        "hang": (Verdict.CAUGHT, Guard.TIME_LIMIT),
        "lazy": (Verdict.CAUGHT, Guard.POISON),
        "start": (Verdict.ACCEPTED, None),
    }


@pytest.mark.slow
def test_the_command_ends_with_1_when_something_gets_through(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"no_cheat": KERNEL}, {})
    found = tmp_path / "found.json"
    result = CliRunner().invoke(main, ["gauntlet", "--corpus", str(corpus), "--json", str(found)])
    assert result.exit_code == 1, result.output
    assert "0 of 1 cheats caught" in result.output
    assert '"let through"' in found.read_text()
