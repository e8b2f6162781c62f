"""Ablations of a space of 46 configurations, and of results made by hand."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.experiments.ablation.configuration import (
    Ablation,
    Changes,
    read_ablation,
    ready_configurations,
)
from mctskernel.experiments.ablation.names import AblationError
from mctskernel.experiments.ablation.plots import plot
from mctskernel.experiments.ablation.repeating import repetition
from mctskernel.experiments.ablation.results import (
    LOG_SPEEDUP,
    SHARE,
    ArmAccount,
    Results,
    SubjectAccount,
    Trial,
    encode_results,
    read_results,
)
from mctskernel.experiments.ablation.statistics import statistics
from mctskernel.experiments.ablation.subjects import subjects_of
from mctskernel.experiments.ablation.sweep import sweep
from mctskernel.experiments.ablation.tables import render
from mctskernel.experiments.records.json_lines import LineError
from mctskernel.experiments.records.provenance import Provenance
from mctskernel.experiments.strategies.simulated_search import search
from mctskernel.profiling.spaces import read_space, write_space
from mctskernel.search_settings import run_configuration
from tests.spaces import bowl

FAMILY = Path(__file__).parents[2] / "docs" / "results" / "families_h100" / "histogram_cuda"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """The file of the space."""
    path = tmp_path / "spaces" / "bowl.json"
    path.parent.mkdir()
    write_space(bowl(), path)
    return path


def a_configuration(space: object, **changes: object) -> str:
    fields = {
        "title": "Strategies",
        "against": "mcts",
        "spaces": [str(space)],
        "seeds": 3,
        "checkpoints": [4],
        **changes,
    }
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in fields.items()]
    return "\n".join(
        (
            *lines,
            "[budget]\nevaluations = 8",
            '[[arms]]\nname = "mcts"\nstrategy = "mcts"',
            '[[arms]]\nname = "random"\nstrategy = "random"',
            '[[arms]]\nname = "uct"\nstrategy = "mcts"\nselection = "uct"\nexploration = 2',
        )
    )


def swept(
    text: str | Ablation, out: Path, jobs: int = 1, stop: Callable[[], bool] = lambda: False
) -> Results:
    ablation = read_ablation(text) if isinstance(text, str) else text
    return sweep(ablation, out, jobs, lambda _done, _planned, _trial: None, stop).results


def without_seconds(results: Results) -> list[Trial]:
    return [msgspec.structs.replace(trial, seconds=0.0) for trial in results.trials]


def test_a_trial_is_the_search_that_it_is_called(space: Path, tmp_path: Path) -> None:
    results = swept(a_configuration(space), tmp_path / "out")
    assert len(results.trials) == results.planned == 9
    assert results.figure == SHARE
    assert results.deterministic
    contenders = {"mcts": "mcts", "random": "random", "uct": "mcts:selection=uct,exploration=2"}
    for trial in results.trials:
        found = search(read_space(space), contenders[trial.arm], trial.seed, in_flight=1, budget=8)
        assert trial.evaluations == found.evaluations
        assert sum(trial.failures.values()) == found.failures
        assert trial.after(8) == pytest.approx(found.share(8), abs=1e-6)
        assert trial.after(4) == pytest.approx(found.share(4), abs=1e-6)
    assert read_results(tmp_path / "out") == results


def test_a_sweep_that_was_cut_off_goes_on_and_comes_out_the_same(space: Path, tmp_path: Path) -> None:
    whole = swept(a_configuration(space), tmp_path / "whole")
    out = tmp_path / "cut"
    asked: list[int] = []
    part = swept(a_configuration(space), out, stop=lambda: asked.append(1) or len(asked) > 60)  # type: ignore[func-returns-value]
    assert 0 < len(part.trials) < 9
    assert "The sweep is not finished: 9 trials" in render(part).markdown
    log = out / "trials.jsonl"
    before = log.read_bytes()
    log.write_bytes(before + b'{"arm": "mcts", "subj')
    resumed = swept(a_configuration(space), out)
    assert log.read_bytes().startswith(before), "what was made is kept as it is"
    assert without_seconds(resumed) == without_seconds(whole)
    assert swept(a_configuration(space), out) == resumed, "the log can be read again"


def test_trials_beside_each_other_find_the_same(space: Path, tmp_path: Path) -> None:
    alone = swept(a_configuration(space, seeds=1), tmp_path / "alone")
    beside = swept(a_configuration(space, seeds=1), tmp_path / "beside", jobs=2)
    assert without_seconds(alone) == without_seconds(beside)


def test_another_configuration_or_another_space_is_refused_by_what_differs(
    space: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    swept(a_configuration(space), out)
    with pytest.raises(AblationError, match="seeds was 3 and is 4"):
        swept(a_configuration(space, seeds=4), out)
    with pytest.raises(AblationError, match=r"arms\.uct\.exploration was 2 and is 3"):
        swept(a_configuration(space).replace("exploration = 2", "exploration = 3"), out)
    known = read_space(space)
    write_space(replace(known, entries=known.entries[:-1]), space)
    with pytest.raises(AblationError, match="another 'bowl'"):
        swept(a_configuration(space), out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(AblationError, match="no ablation"):
        swept(a_configuration(space), tmp_path / "mine")


def test_a_damaged_log_is_a_sentence_that_names_the_line(space: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    swept(a_configuration(space), out)
    log = out / "trials.jsonl"
    log.write_bytes(b'{"arm": 3}\n' + log.read_bytes())
    with pytest.raises(LineError, match=r"trials\.jsonl, line 1"):
        swept(a_configuration(space), out)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("seeds = 3", "seed = 3"), "field of a configuration 'seed'. Did you mean 'seeds'?"),
        (('against = "mcts"', 'against = "mtcs"'), "no arm 'mtcs'. Did you mean 'mcts'?"),
        (
            ('strategy = "random"', 'strategy = "randon"'),
            "(in arm 'random') 'randon'. Did you mean 'random'?",
        ),
        (
            ('selection = "uct"', 'selektion = "uct"'),
            "setting of arm 'uct' 'selektion'. Did you mean 'selection'?",
        ),
        (("exploration = 2", 'exploration = "much"'), "exploration: Expected `float`, got `str`"),
        (("exploration = 2", "exploration = -1"), "In arm 'uct': exploration is -1.0; it must be 0 or more"),
        (
            ("evaluations = 8", "evaluation = 8"),
            "field of [budget] 'evaluation'. Did you mean 'evaluations'?",
        ),
        (("evaluations = 8", "evaluations = 0"), ">= 1"),
        (("evaluations = 8", "evaluations = 2"), "within the budget of 2, not 4"),
        (('name = "random"', 'name = "mcts"'), "Two arms are called 'mcts'"),
        (('name = "random"', 'name = "../up"'), "Arm 2 needs a name"),
        (
            ('name = "uct"', 'name = "uct"\nreward = "time"'),
            "sets reward, which a recorded space has no use for",
        ),
        (('name = "uct"', 'name = "uct"\nsurrogate = "oder"'), "'oder'. Did you mean 'order'?"),
        (('name = "random"', 'name = "random"\nsurrogate = "order"'), "is for strategy mcts, not random"),
        (("[budget]", "tasks = ['sum']\n[budget]"), "spaces or tasks, one of them"),
        (("evaluations = 8", "evaluations = 8\nseconds = 9"), "searched by evaluations: leave seconds"),
        (("title = ", "title : "), "not valid TOML"),
    ],
)
def test_what_is_misspelt_is_named_with_what_comes_nearest(wrong: tuple[str, str], sentence: str) -> None:
    text = a_configuration("x.json")
    assert wrong[0] in text
    with pytest.raises(AblationError, match=re.escape(sentence)):
        read_ablation(text.replace(*wrong))


def test_a_space_that_is_not_there_is_named_with_what_comes_nearest(space: Path) -> None:
    with pytest.raises(AblationError, match=r"Did you mean 'bowl\.json'"):
        subjects_of([str(space.with_name("bowls.json"))], [])
    with pytest.raises(AblationError, match="Did you mean 'made_tiles'"):
        subjects_of(["made:made_tile"], [])
    with pytest.raises(AblationError, match="holds no recorded space"):
        subjects_of([str(space.parents[1])], [])
    with pytest.raises(AblationError, match="'bowl' is searched twice"):
        subjects_of([str(space), str(space.parent)], [])


def test_a_command_line_outweighs_a_file(space: Path) -> None:
    changed = read_ablation(a_configuration("x.json"), Changes(spaces=(str(space),), seeds=2, evaluations=20))
    assert (changed.spaces, changed.seeds, changed.checkpoints) == ((str(space),), (0, 1), (4, 20))
    assert read_ablation(changed.text).digest == changed.digest, "a manifest asks for the same"
    less = read_ablation(ready_configurations()["budget"], Changes(evaluations=50))
    assert less.checkpoints == (12, 25, 50)


FIELDS = ("title", "against", "arms", "budget", "search", "spaces", "tasks", "seeds", "small", "colour")

VALUES = st.recursive(
    st.integers(-2, 300)
    | st.floats()
    | st.booleans()
    | st.sampled_from(["mcts", "made:made_words", "", "model"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "evaluations", "strategy", "model", "mixture"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_whatever_a_file_says_is_a_configuration_or_a_sentence(changed: dict[str, object]) -> None:
    document = {**tomllib.loads(a_configuration("x.json")), **changed}
    try:
        found = read_ablation(tomlkit.dumps(document), Changes("small", seeds=1, evaluations=5))
    except AblationError as error:
        assert str(error)
    else:
        assert read_ablation(found.text).digest == found.digest


@pytest.mark.parametrize("name", ready_configurations())
@pytest.mark.parametrize("size", ["paper", "small"])
def test_every_ready_configuration_is_one(name: str, size: str) -> None:
    ablation = read_ablation(ready_configurations()[name], Changes(size, model={"model": "m"}))
    assert ablation.question
    assert size == "small" or len(ablation.seeds) >= 20
    for arm in ablation.arms if ablation.tasks else ():
        run_configuration(
            arm.settings,
            task="sum",
            device="model",
            architecture="H100",
            seed=0,
            budget=ablation.budget,
        )


@pytest.mark.parametrize("name", ["feedback", "proposers"])
def test_arms_that_ask_a_model_need_one(name: str) -> None:
    with pytest.raises(AblationError, match="asks a language model: No model is named: add --model NAME"):
        read_ablation(ready_configurations()[name])


@pytest.mark.parametrize("name", ["search", "budget", "selection", "surrogate"])
def test_ready_configurations_of_spaces_run(name: str, space: Path, tmp_path: Path) -> None:
    text = ready_configurations()[name]
    ablation = read_ablation(text, Changes("small", spaces=(str(space),)))
    results = swept(ablation, tmp_path / "out")
    assert len(results.trials) == results.planned
    predicting = {trial.arm for trial in results.trials if trial.predictions}
    assert predicting == ({arm.name for arm in results.arms} - {"off"} if name == "surrogate" else set())


def test_a_perfect_surrogate_is_worth_something(space: Path, tmp_path: Path) -> None:
    text = ready_configurations()["surrogate"]
    ablation = read_ablation(text, Changes("small", spaces=(str(space),), seeds=5, evaluations=6))
    means = {row.arm: row.means[-1].mean for row in statistics(swept(ablation, tmp_path / "out")).arms}
    assert means["filter, perfect"] > means["off"]
    assert means["filter, perfect"] > means["filter, random"]


def test_recorded_kernels_are_searched_with_predictions(tmp_path: Path) -> None:
    text = ready_configurations()["surrogate"]
    ablation = read_ablation(text, Changes("small", spaces=(str(FAMILY),), evaluations=4))
    results = swept(ablation, tmp_path / "out")
    assert [each.name for each in results.subjects] == ["histogram_cuda"]
    assert {trial.evaluations for trial in results.trials} == {4}
    assert all(0 < trial.after(4) <= 1 for trial in results.trials)


def made_results(figures: dict[str, list[float]], figure: str = SHARE, subjects: int = 1) -> Results:
    """Trials with the figures of an arm, which go through subjects by turns."""
    trials = tuple(
        Trial(
            arm=arm,
            subject=f"s{place % subjects}",
            seed=place // subjects,
            evaluations=10,
            improvements=((1, 0.0), (5, value)),
            failures={"crash": 1},
            seconds=2.0,
        )
        for arm, values in figures.items()
        for place, value in enumerate(values)
    )
    return Results(
        provenance=Provenance("command", "machine", "2026-01-01"),
        title="Made & measured",
        question="",
        against="one",
        figure=figure,
        source="recorded",
        deterministic=True,
        planned=len(trials),
        checkpoints=(4, 10),
        arms=tuple(ArmAccount(arm) for arm in figures),
        subjects=tuple(SubjectAccount(f"s{place}", "0") for place in range(subjects)),
        trials=trials,
    )


def test_differences_are_paired_and_corrected_for_all_comparisons() -> None:
    base = [0.1, 0.5, 0.2, 0.9, 0.4, 0.6]
    results = made_results({"one": base, "two": [each + 0.05 for each in base], "three": [*base[:5], 0.7]})
    at_4, _, always, once = statistics(results).comparisons
    assert (at_4.at, at_4.difference, at_4.tied, at_4.standardised) == (4, 0.0, 6, None)
    assert always.difference == pytest.approx(0.05)
    assert (always.won, always.tied, always.lost, always.share_won) == (6, 0, 0, 1.0)
    # Of 64 choices of signs two are as far from 0; Holm's factor is the number of comparisons.
    assert always.p == pytest.approx(2 / 64)
    assert always.adjusted_p == pytest.approx(4 * 2 / 64)
    assert (once.won, once.tied, once.share_won, once.p) == (1, 5, pytest.approx(7 / 12), 1.0)
    assert once.standardised == pytest.approx((0.1 / 6) / (0.1 / 6**0.5))
    assert (once.subjects_won, once.subjects) == (1, 1)


def test_few_pairs_have_neither_interval_nor_test() -> None:
    (*_, found) = statistics(made_results({"one": [0.1, 0.2], "two": [0.3, 0.3]})).comparisons
    assert (found.pairs, found.p, found.low) == (2, None, None)


def test_only_seeds_that_both_have_are_paired() -> None:
    whole = made_results({"one": [0.5, 0.1, 0.3], "two": [0.7, 0.2, 0.9]})
    found = statistics(msgspec.structs.replace(whole, trials=whole.trials[1:])).comparisons[-1]
    assert (found.pairs, found.difference) == (2, pytest.approx(0.35))


@settings(max_examples=10, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["one", "two", "a_b & c|d"]),
        st.lists(st.floats(0, 1), min_size=1, max_size=7),
        min_size=2,
    ).filter(lambda figures: "one" in figures),
    st.integers(1, 3),
    st.sampled_from([SHARE, LOG_SPEEDUP]),
)
def test_tables_say_the_same_in_every_form(
    figures: dict[str, list[float]], subjects: int, figure: str
) -> None:
    results = made_results(figures, figure, min(subjects, *map(len, figures.values())))
    found = statistics(results)
    for each in found.comparisons:
        assert each.won + each.tied + each.lost == each.pairs
        assert each.low is None or each.high is None or each.low <= each.difference + 1e-9
        assert each.p is None or (each.adjusted_p or 0) >= each.p
    tables = render(msgspec.json.decode(encode_results(results), type=Results))
    assert tables == render(results)
    rows = list(csv.DictReader(io.StringIO(tables.csv)))
    assert len(rows) == len(figures) * 2
    for line in tables.latex.splitlines():
        if line.endswith(r"\\"):
            assert not re.search(r"(?<!\\)[_%#]", line), line
    table_lines = [line for line in tables.markdown.splitlines() if line.startswith("|")]
    assert all(re.match(r"(\|([^|]|\\\|)*)+\|$", line) for line in table_lines)


def test_speedups_are_told_as_factors() -> None:
    text = render(made_results({"one": [0.0, 0.0], "two": [0.693147, 0.693147]}, LOG_SPEEDUP)).markdown
    assert "2.00x (2.00 to 2.00)" in text
    assert "| two | 10 | 2.000 |" in text


def test_results_that_are_none_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(AblationError, match="isn't there"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": "mctskernel.comparison", "schema_version": 1}')
    with pytest.raises(AblationError, match=r"is mctskernel\.comparison"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("[" * 5000)
    with pytest.raises(AblationError, match="not what an ablation found"):
        read_results(tmp_path)


def test_a_repetition_tells_what_came_out_otherwise() -> None:
    then = made_results({"one": [0.5, 0.5]})
    assert repetition(then, then).sentence == "2 of 2 trials came out the same."
    changed = repetition(then, made_results({"one": [0.5, 0.25]}))
    assert changed.sentence == "1 of 2 trials came out the same."
    assert changed.differing == ("one on s0, seed 1: came to 0.25, and to 0.5 then.",)


def test_a_plot_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = made_results({"one": [0.1, 0.5, 0.2, 0.3, 0.3], "two": [0.3, 0.6, 0.2, 0.4, 0.4]})
    for name in ("a.svg", "b.svg"):
        plot(results, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.count(">two<") == 2, "a line in the legend, and a row of the effects"
