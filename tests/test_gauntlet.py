"""The gauntlet: its corpus, its verdicts, and a dozen of its cheats."""

from __future__ import annotations

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
from mctskernel.gauntlet import run as gauntlet_run
from mctskernel.gauntlet.corpus import CORPUS, CorpusError, Entry, read_corpus
from mctskernel.gauntlet.run import Report, Result, Venue, Verdict, run_gauntlet
from mctskernel.gauntlet.table import markdown
from mctskernel.profiling.gpu import session
from tests.conftest import KERNEL, REFERENCE, TASK_TOML

DOZEN = (
    "cuda/cheats/allocates_from_the_heap",
    "cuda/cheats/assembler_escapes",
    "cuda/cheats/huge_scratch",
    "cuda/cheats/includes_a_host_file",
    "cuda/cheats/macro_of_two_minds",
    "cuda/cheats/nothing_written",
    "cuda/cheats/reads_behind_the_row",
    "cuda/cheats/scratch_in_the_input",
    "cuda/cheats/traps_on_large_shapes",
    "cuda/cheats/warp_without_synchronisation",
    "cuda/cheats/without_the_largest",
    "triton/cheats/host_code",
)

OK = Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("n=4096", 1e-6, 1e-6, 1e-6),))
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
    for kind, entries in (("cheats", cheats), ("honest", honest)):
        where = folder / "cuda" / kind
        where.mkdir(parents=True)
        lines = []
        for name, source in entries.items():
            (where / f"{name}.cu").write_text(source)
            words = (
                'trick = "It cheats."\nguards = ["poisoned outputs"]'
                if kind == "cheats"
                else 'kernel = "Odd."'
            )
            lines.append(f'[{name}]\n{words}\ntask = "double"\n')
        (where / "entries.toml").write_text("\n".join(lines))
    return folder


class TestCorpus:
    def test_it_has_enough_cheats_and_each_says_what_it_does(self) -> None:
        cheats = [entry for entry in read_corpus() if not entry.honest]
        assert len(cheats) >= 140
        assert len({entry.text for entry in cheats}) > 0.9 * len(cheats)
        for entry in cheats:
            assert entry.text.endswith("."), entry.label
            assert entry.guards, entry.label

    def test_it_comes_with_the_package(self) -> None:
        assert CORPUS.is_dir()

    @pytest.mark.parametrize(
        ("before", "after", "sentence"),
        [
            ("poisoned outputs", "hope", "hope"),
            ('task = "double"', 'task = "triple"', "triple"),
            ("[cheat]", "[another]", "another.cu"),
            ("trick", "tricks", "tricks"),
            ('task = "double"', 'task = "double"\nwhere = "moon"', "moon"),
            ("[cheat]", "[cheat", "TOML"),
        ],
    )
    def test_a_mistake_is_named(self, tmp_path: Path, before: str, after: str, sentence: str) -> None:
        table = write_corpus(tmp_path, {"cheat": KERNEL}, {}) / "cuda" / "cheats" / "entries.toml"
        table.write_text(table.read_text().replace(before, after))
        with pytest.raises(ValueError, match=sentence):
            read_corpus(tmp_path)

    def test_a_folder_without_a_corpus_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CorpusError, match="no gauntlet"):
            read_corpus(tmp_path)


def test_a_dozen_cheats_meet_the_guards_that_they_should() -> None:
    entries = [entry for entry in read_corpus() if entry.label in DOZEN]
    assert len(entries) == len(DOZEN)
    report = run_gauntlet(entries, Venue("model", workers=2), ignore)
    assert [result.label for result in report.results if result.verdict is not Verdict.CAUGHT] == []
    assert [f"{result.label}: {result.guard}" for result in report.results if result.unexpected] == []
    assert all(result.message for result in report.results)


@dataclass
class Scripted:
    """An executor that says of each kernel what its source begins with."""

    opened: list[int] = field(default_factory=list)
    said: dict[str, Evaluation | None] = field(default_factory=dict)
    gate: Evaluation = OK
    _current: Evaluation | None = None

    @contextmanager
    def open(self, _spec: DeviceSpec, _workers: int) -> Iterator[Executor]:
        self.opened.append(1)
        yield self  # type: ignore[misc] - as much of one as the gauntlet uses

    def submit(self, _ticket: int, kernel: Kernel) -> None:
        word = kernel.source.split()[0]
        if word == "broken":
            raise DeviceError("The device is gone.")
        self._current = self.said.get(word, OK)

    def wait(self, _timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        return [] if self._current is None else [(0, self._current)]

    def last_gate(self, _kernel: Kernel, _baseline: Kernel) -> Evaluation:
        return self.gate

    def fingerprint(self) -> dict[str, str]:
        return {"device": "scripted"}


def judged(tmp_path: Path, executor: Scripted, cheat: str = "a", honest: str = "b") -> Report:
    entries = read_corpus(write_corpus(tmp_path, {"cheat": cheat}, {"honest": honest}))
    return run_gauntlet(entries, Venue("model", opener=executor.open), ignore)


class TestVerdicts:
    def test_what_passes_is_let_through_or_accepted(self, tmp_path: Path) -> None:
        report = judged(tmp_path, Scripted())
        assert [each.verdict for each in report.results] == [Verdict.LET_THROUGH, Verdict.ACCEPTED]
        assert report.results[0].log_gain == 0.0
        assert not report.fine

    def test_what_is_refused_is_caught_or_wrongly_refused(self, tmp_path: Path) -> None:
        report = judged(tmp_path, Scripted(said={"a": WRONG, "b": WRONG}))
        assert [each.verdict for each in report.results] == [Verdict.CAUGHT, Verdict.WRONGLY_REFUSED]
        assert [each.gate for each in report.results] == ["evaluation", "evaluation"]
        assert report.results[0].guard is Guard.COMPARISON
        assert report.results[0].unexpected

    def test_a_time_that_is_not_believed_is_a_refusal(self, tmp_path: Path) -> None:
        quarantined = replace(OK, quarantine="It can't be.", guard=Guard.ROOFLINE)
        report = judged(tmp_path, Scripted(said={"a": quarantined}))
        assert report.results[0].verdict is Verdict.CAUGHT
        assert report.results[0].outcome == "quarantined"
        assert report.fine

    def test_an_honest_kernel_may_be_slow(self, tmp_path: Path) -> None:
        gate = replace(OK, timings=(Timing("n=77", 3e-4, 3e-4, 3e-4, baseline_seconds=1e-4),))
        cheat, honest = judged(tmp_path, Scripted(gate=gate)).results
        assert (cheat.verdict, honest.verdict) == (Verdict.CAUGHT, Verdict.ACCEPTED)
        assert "3.00 times as long" in cheat.message and honest.message == cheat.message

    def test_the_last_gate_refuses_too(self, tmp_path: Path) -> None:
        gate = replace(WRONG, guard=Guard.POISON, checks=(Check("n=77", 1, passed=False, error=1.0),))
        report = judged(tmp_path, Scripted(gate=gate))
        assert [(each.gate, each.guard) for each in report.results] == [("last gate", Guard.POISON)] * 2
        assert not report.results[0].unexpected

    def test_a_device_that_breaks_costs_one_entry_and_is_opened_again(self, tmp_path: Path) -> None:
        entries = [
            replace(entry, name=f"{entry.name}{i}", file=entry.file)
            for entry in read_corpus(write_corpus(tmp_path, {"cheat": "broken"}, {"honest": "b"}))
            for i in range(2)
        ]
        executor = Scripted()
        report = run_gauntlet(entries, Venue("model", opener=executor.open), ignore)
        assert [each.verdict for each in report.results] == [Verdict.NOT_JUDGED] * 2 + [Verdict.ACCEPTED] * 2
        assert len(executor.opened) == 3
        assert not report.fine

    def test_a_silent_executor_is_a_broken_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gauntlet_run, "ENTRY_SECONDS", 0.01)
        report = judged(tmp_path, Scripted(said={"a": None}))
        assert report.results[0].verdict is Verdict.NOT_JUDGED
        assert report.results[1].verdict is Verdict.ACCEPTED

    def test_entries_of_the_other_device_are_left_out_and_named(self, tmp_path: Path) -> None:
        entries = read_corpus(write_corpus(tmp_path, {"cheat": "a"}, {"honest": "b"}))
        there = [replace(entry, where="gpu") if not entry.honest else entry for entry in entries]
        report = run_gauntlet(there, Venue("model", opener=Scripted().open), ignore)
        assert report.skipped == ("cuda/cheats/cheat",)
        assert len(report.results) == 1

    def test_the_table_names_what_refused_each(self, tmp_path: Path) -> None:
        text = markdown(judged(tmp_path, Scripted(said={"a": WRONG})))
        assert "1 of 1 cheats caught, 0 of 1 honest kernels refused" in text
        assert (
            "| cuda/cheats/cheat | model | It cheats. | comparison with the reference (unexpected) |" in text
        )


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[DeviceSpec, int], GpuExecutor]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "executors"))
    monkeypatch.setattr(session, "RUN_SECONDS", 2.0)
    return lambda spec, workers: GpuExecutor(
        spec, workers=workers, service="fake_gpu:FakeGpu", gate_checks=()
    )


def test_on_a_gpu_a_kernel_that_hangs_costs_its_entry(
    tmp_path: Path, fake_gpu: Callable[[DeviceSpec, int], GpuExecutor]
) -> None:
    cheats = {name: KERNEL.replace("twice", name) for name in ("hang", "lazy")}
    entries: list[Entry] = read_corpus(write_corpus(tmp_path, cheats, {"start": KERNEL}))
    report = run_gauntlet(entries, Venue("gpu", opener=fake_gpu), ignore)
    assert {each.label.split("/")[-1]: (each.verdict, each.guard) for each in report.results} == {
        "hang": (Verdict.CAUGHT, Guard.TIME_LIMIT),
        "lazy": (Verdict.CAUGHT, Guard.POISON),
        "start": (Verdict.ACCEPTED, None),
    }


def test_the_command_ends_with_1_when_something_gets_through(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"no_cheat": KERNEL}, {})
    found = tmp_path / "found.json"
    result = CliRunner().invoke(main, ["gauntlet", "--corpus", str(corpus), "--json", str(found)])
    assert result.exit_code == 1, result.output
    assert "0 of 1 cheats caught" in result.output
    assert '"let through"' in found.read_text()
