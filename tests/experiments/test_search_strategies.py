"""Searches of small recorded spaces where what is found can be counted by hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace
from mctskernel.experiments.made_spaces import made_spaces, variant_spaces
from mctskernel.experiments.records.json_lines import LineError
from mctskernel.experiments.search_strategies import main
from mctskernel.experiments.strategies.contenders import DEFAULT, GROUPS, contenders
from mctskernel.experiments.strategies.jobs import jobs_of, run_jobs
from mctskernel.experiments.strategies.simulated_search import policy_of, search
from mctskernel.experiments.strategies.tables import asynchrony_table, leave_one_out_table, shares_table
from mctskernel.experiments.strategies.traces import (
    Trace,
    TraceLog,
    improvements,
    read_traces,
)
from mctskernel.experiments.strategy_report import Report, markdown_report
from mctskernel.profiling.spaces import write_space
from mctskernel.report.resampling import estimate
from mctskernel.tree.policy import PolicyError


def a_space(*, failing: bool = False) -> SearchSpace:
    """6 x 5 configurations that take 1 + x + 10 y seconds, measured in as many; with `failing` those of odd x fail."""
    entries = []
    for x, y in itertools.product(range(6), range(5)):
        seconds = 1.0 + x + 10 * y
        fails = failing and x % 2 == 1
        entries.append(
            Entry(
                (x, y),
                Outcome.LAUNCH_ERROR if fails else Outcome.OK,
                None if fails else seconds,
                "RuntimeFailedConfig" if fails else "",
                {"benchmark": seconds},
            )
        )
    return SearchSpace(
        "small", (Parameter("x", tuple(range(6))), Parameter("y", tuple(range(5)))), tuple(entries)
    )


def a_trace(contender: str, space: str, seed: int, share: float, in_flight: int = 1) -> Trace:
    return Trace(
        space=space,
        contender=contender,
        seed=seed,
        in_flight=in_flight,
        evaluations=10,
        improvements=((3, share / 2), (7, share)),
    )


def test_the_share_is_the_optimum_over_the_best_so_far_and_0_before_any_success() -> None:
    trace = a_trace("mcts", "small", 0, 1.0)
    assert improvements([None, 4.0, 8.0, 2.0, None], 1.0) == ((2, 0.25), (4, 0.5))
    assert [trace.share(count) for count in (2, 3, 6, 7, 200)] == [0.0, 0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("contender", contenders(["all"]))
@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_budget_is_kept_and_failures_count(contender: str, in_flight: int) -> None:
    found = search(a_space(failing=True), contender, seed=1, in_flight=in_flight, budget=12)
    assert found.evaluations == 12
    assert 0 < found.failures < 12
    assert found.improvements[-1][0] <= 12
    assert 0 < found.share(12) <= 1


def test_the_same_seed_finds_the_same() -> None:
    first, again, other = (search(a_space(), "mcts", seed, 2, 15).improvements for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_whole_space_holds_the_optimum_and_ends_the_search() -> None:
    found = search(a_space(), "random", seed=0, in_flight=1, budget=100)
    assert found.evaluations == 30
    assert found.share(30) == 1.0
    assert found.virtual_seconds == pytest.approx(sum(1 + x + 10 * y for x in range(6) for y in range(5)))


def test_starting_configurations_that_fail_are_evaluations_too() -> None:
    entries = [Entry((x,), Outcome.BUILD_ERROR, None, "CompilationFailedConfig") for x in range(9)]
    dead = SearchSpace("dead", (Parameter("x", tuple(range(9))),), tuple(entries))
    found = search(dead, "mcts", seed=0, in_flight=1, budget=5)
    assert (found.evaluations, found.failures, found.improvements) == (5, 5, ())


def test_eight_at_a_time_take_less_time_and_as_many_evaluations() -> None:
    alone, beside = (search(a_space(), "random", 0, count, 30) for count in (1, 8))
    assert beside.evaluations == alone.evaluations
    assert beside.virtual_seconds < alone.virtual_seconds / 3


def test_a_contender_is_a_strategy_with_settings() -> None:
    assert policy_of("mcts:value=mean,exploration=0.5").value == "mean"
    assert policy_of("random").strategy == "random"
    with pytest.raises(PolicyError, match="no choice 'colour'"):
        policy_of("mcts:colour=red")
    with pytest.raises(PolicyError, match="'magic'"):
        policy_of("magic")


def test_every_contender_of_a_group_is_one() -> None:
    for name in contenders(GROUPS):
        policy_of(name)


def test_an_estimate_is_the_mean_of_means_and_its_interval_covers_it() -> None:
    found = estimate([np.array([0.0, 1.0] * 50), np.full(3, 0.9)])
    assert found.mean == pytest.approx(0.7)
    assert found.low < found.mean < found.high
    # Half the standard error of the first group, 1.96 times: 0.098 / 2.
    assert found.high - found.low == pytest.approx(0.098, rel=0.1)


def test_the_best_on_the_other_spaces_is_judged_on_the_one_left_out() -> None:
    known = {("one", "a"): 0.9, ("one", "b"): 0.9, ("one", "c"): 0.6, ("two", "a"): 0.5, ("two", "b"): 0.5}
    known["two", "c"] = 0.8
    traces = [
        a_trace(name, space, seed, share) for (name, space), share in known.items() for seed in range(3)
    ]
    rows = leave_one_out_table(traces, (10,)).splitlines()
    assert rows[2].startswith("| a | `one` | 0.900 | `one` | 0.900 |")
    assert rows[4].startswith("| c | `one` | 0.600 | `two` | 0.800 |")
    assert "**0.800**" in rows[5]


def test_asynchrony_is_compared_seed_by_seed() -> None:
    traces = [a_trace("mcts", "a", seed, 0.5 + seed / 10) for seed in range(5)]
    traces += [a_trace("mcts", "a", seed, 0.48 + seed / 10, in_flight=8) for seed in range(4)]
    row = asynchrony_table(traces, 8, (10,)).splitlines()[2]
    assert row == "| `mcts` | 10 | -2.0 (-2.0 to -2.0) | -2.0 (-2.0 to -2.0) | 4 |"


def test_a_table_ranks_what_searched_every_space() -> None:
    traces = [a_trace(name, space, 0, 0.6) for name in ("poor",) for space in ("a", "b")]
    traces += [a_trace("good", space, 0, 0.9) for space in ("a", "b")]
    traces += [a_trace("half", "a", 0, 1.0)]
    rows = shares_table(traces, (3, 10)).splitlines()
    assert [row.split("`")[1] for row in rows[2:]] == ["good", "poor", "half"]
    assert "0.450 / 0.900" in rows[2]


def test_a_report_has_a_table_for_every_question() -> None:
    others = [name for name in contenders(["walks", "grid"]) if name != DEFAULT]
    judged = [
        a_trace(DEFAULT, space, seed, 0.9, count) for space in "ab" for seed in (0, 1) for count in (1, 8)
    ]
    judged += [a_trace(name, space, 0, 0.5) for name in others for space in "ab"]
    more = [a_trace(DEFAULT, "made", 0, 0.7)]
    report = markdown_report(
        Report({"date": "2026-11-21"}, judged, more, [a_trace("kernel_tuner:pso", "a", 0, 0.4)])
    )
    assert report.count("\n## ") == 8
    assert "| `kernel_tuner:pso` | 0.400" in report
    assert f"| `{DEFAULT}` | 50 | +0.0 (+0.0 to +0.0) |" in report


def test_a_plot_has_a_panel_for_each_space_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    traces = [
        a_trace(name, space, seed, 0.8) for name in ("one", "two") for space in "ab" for seed in range(3)
    ]
    out = tmp_path / "traces.jsonl"
    for trace in traces:
        TraceLog(out).append(trace)
    for name in ("first.svg", "second.svg"):
        invoke("plot", str(out), "--out", str(tmp_path / name))
    first, second = ((tmp_path / name).read_text() for name in ("first.svg", "second.svg"))
    assert first == second
    assert first.count("share of the optimum") == 1
    assert first.count(">evaluations<") == 2


def test_a_run_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    write_space(a_space(), tmp_path / "small.json.gz")
    out = tmp_path / "traces.jsonl"
    command = ["run", "--spaces", str(tmp_path), "--strategies", "random", "--budget", "6", "--jobs", "1"]
    invoke(*command, "--seeds", "2", "--out", str(out))
    first = out.read_bytes()
    out.write_bytes(first + b'{"space": "torn')
    invoke(*command, "--seeds", "3", "--out", str(out))
    assert out.read_bytes().startswith(first)
    assert sorted(trace.seed for trace in read_traces(out)) == [0, 1, 2]
    assert "`random`" in invoke("table", str(out), "--at", "3,6")


def test_a_trace_that_the_code_no_longer_makes_is_found(tmp_path: Path) -> None:
    write_space(a_space(), tmp_path / "small.json")
    out = tmp_path / "traces.jsonl"
    TraceLog(out).append(search(a_space(), "random", 0, 1, 9))
    command = ["check", str(out), "--spaces", str(tmp_path)]
    assert "1 of 1 find the same" in invoke(*command)
    TraceLog(out).append(
        msgspec.structs.replace(search(a_space(), "random", 1, 1, 9), improvements=((1, 0.5),))
    )
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "small, random, 1, 1: finds something else" in result.output


def test_after_its_time_a_run_begins_nothing_more(tmp_path: Path) -> None:
    write_space(a_space(), tmp_path / "small.json")
    log = TraceLog(tmp_path / "traces.jsonl")
    jobs = jobs_of([tmp_path], ["random"], range(3), 1, 6)
    run_jobs(jobs, 1, log, seconds=0)
    assert log.done == set()
    run_jobs([*jobs, *jobs], 1, log)
    assert len(read_traces(tmp_path / "traces.jsonl")) == 3


def test_a_damaged_file_of_traces_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    TraceLog(path).append(a_trace("mcts", "a", 0, 1.0))
    path.write_bytes(path.read_bytes() + b'{"seed": "none"}\n')
    with pytest.raises(LineError, match="line 2"):
        read_traces(path)


def test_an_unknown_strategy_is_a_sentence(tmp_path: Path) -> None:
    write_space(a_space(), tmp_path / "small.json")
    result = CliRunner().invoke(
        main, ["run", "--spaces", str(tmp_path), "--strategies", "magic", "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 1
    assert "strategy is 'magic'" in result.output


def test_made_spaces_are_what_they_are_said_to_be() -> None:
    spaces = {space.name: space for space in made_spaces()}
    failing = {
        name: np.mean([entry.seconds is None for entry in space.entries]) for name, space in spaces.items()
    }
    assert failing["made_mines"] > 0.5
    assert failing["made_rugged"] == failing["made_words"] == 0
    assert all(1000 < len(space.entries) < 20_000 for space in spaces.values())


def test_a_family_of_variants_is_a_space(tmp_path: Path) -> None:
    (tmp_path / "variants.jsonl").write_text(
        '{"name": "a", "family": "sum", "source": "a.cu", "macros": {"NT": 64, "KIND": 1}, "us": 5.0}\n'
        '{"name": "b", "family": "sum", "source": "a.cu", "macros": {"NT": 128}, "us": 4.0}\n'
        '{"name": "c", "family": "sum", "source": "a.cu", "macros": {"NT": 256}, "outcome": "crash"}\n'
    )
    (space,) = variant_spaces(tmp_path)
    assert space.names == ("NT", "KIND")
    assert space.by_values[128, 0].seconds == pytest.approx(4e-6)
    assert space.by_values[256, 0].outcome is Outcome.CRASH
    write_space(space, tmp_path / "sum.json")


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
