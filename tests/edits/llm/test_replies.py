"""Whatever a model writes, what can be read of it is read, and the rest is accounted for."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mctskernel.edits
from mctskernel.core.edit import Category, Patch, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Loss
from mctskernel.edits.llm.replies import EDITS_SCHEMA, MAX_TITLE, Reading, read_reply
from mctskernel.edits.patch import apply
from tests.edits.llm.reply_corpus import BIGGER, CASES, CUDA, THREE, TITLES, TRITON, UNROLL, WHOLE, Case
from tests.edits.llm.scripted import a_reply

LIMIT = 5


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_reply_is_read_as_it_was_meant(case: Case) -> None:
    reading = read_reply(case.text, case.kernel, LIMIT)
    assert tuple(edit.title for edit in reading.edits) == case.titles
    assert tuple(each.edit.title for each in reading.unfit) == case.unfit
    assert tuple(each.loss for each in reading.dropped) == case.losses
    check(reading, case.kernel, LIMIT)


def test_what_does_not_fit_goes_back_with_a_reason_that_helps() -> None:
    patch = [*BIGGER["patch"], {"search": "float sum = 1.0f;\nint nothing;", "replace": ""}]  # type: ignore[misc]
    (unfit,) = read_reply(a_reply({**BIGGER, "patch": patch}), CUDA, LIMIT).unfit
    assert unfit.loss is Loss.NO_MATCH
    assert unfit.reason.startswith(
        "Block 2 of 2: its SEARCH text, from 'float sum = 1.0f;' on, isn't in the source"
    )


@pytest.mark.parametrize(
    ("priors", "read"),
    [
        ((30, 60), (0.3, 0.6)),
        (("40%", "0.75"), (0.4, 0.75)),
        ((None, "?"), (0.5, 0.5)),
        ((float("nan"), float("inf")), (0.5, 0.5)),
    ],
)
def test_priors_are_from_0_to_1(priors: tuple[object, object], read: tuple[float, float]) -> None:
    edits = [{**edit, "prior": prior} for edit, prior in zip((BIGGER, UNROLL), priors, strict=True)]
    assert tuple(edit.prior for edit in read_reply(a_reply(*edits), CUDA, LIMIT).edits) == pytest.approx(read)


def test_the_format_that_prompts_describe_is_read() -> None:
    text = (Path(mctskernel.edits.__file__).parent / "prompts" / "reply_format.md").read_text()
    by_json, by_blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert jsonschema.Draft202012Validator(dict(EDITS_SCHEMA)).is_valid(json.loads(by_json))
    (first,), (second,) = (read_reply(example, CUDA, LIMIT).edits for example in (by_json, by_blocks))
    assert first.title == second.title == "Use blocks of 128 threads"
    assert first.category is second.category is Category.LAUNCH
    assert first.prior == second.prior == 0.4
    assert apply(CUDA, first) == apply(CUDA, second)
    assert [f"`{category}`" in text for category in Category] == [True] * len(Category)
    assert f"at most {MAX_TITLE} characters" in text


@pytest.mark.parametrize("cut", range(0, len(THREE), 9))
def test_a_reply_cut_off_anywhere_gives_the_edits_that_are_whole(cut: int) -> None:
    reading = read_reply(THREE[:cut], CUDA, LIMIT)
    whole = len(reading.edits)
    assert tuple(edit.title for edit in reading.edits) == TITLES[:whole]
    assert whole >= sum(cut > THREE.index(f'"title": "{title}"') + 800 for title in TITLES[:2])
    for edit, original in zip(reading.edits, read_reply(THREE, CUDA, LIMIT).edits, strict=False):
        assert edit.change == original.change
    if THREE[cut:] in ("", "}", "]}"):
        assert whole == 3
    else:
        assert reading.dropped or whole == 3


@given(st.text(max_size=200) | st.text(alphabet='{}[]":,\\`<>=@+- \nSEARCHeditstitlpach', max_size=300))
def test_any_text_is_read(text: str) -> None:
    check(read_reply(text, CUDA, LIMIT), CUDA, LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        '{"edits": [{"source": "a"b"c"d"' * 2_500,
        '{"title": "x", "patch": [' + '{"search": "a", "replace": "b"},' * 5_000 + "]}",
        '{"edits": [' + '{"title": "x", "source": "__global__ a"},' * 5_000 + "]}",
        "<<<<<<< SEARCH\n" * 12_500,
        "## a\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n" * 2_500,
        "```cuda\n__global__\n" * 10_000,
        "</think>" * 25_000,
        a_reply({**WHOLE, "source": "__global__" + '\\"' * 60_000}),
        a_reply({**WHOLE, "source": "/*" + "a." * 60_000 + "b=1\n*/__global__"}),
        a_reply({**WHOLE, "source": "@triton.jit\nx=" + "(" * 60_000}),
        a_reply({**BIGGER, "patch": [{"search": "x\n" * 100_000, "replace": ""}]}),
    ],
    ids=lambda text: f"{text[:30]}...{text[-10:]}",
)  # fmt: skip
@pytest.mark.parametrize("kernel", [CUDA, TRITON], ids=["cuda", "triton"])
@pytest.mark.timeout(60)
def test_hostile_replies_are_read_in_bounded_time(text: str, kernel: Kernel) -> None:
    """A quadratic reader would take minutes; reading one takes less than a second."""
    check(read_reply(text, kernel, LIMIT), kernel, LIMIT)


def check(reading: Reading, kernel: Kernel, limit: int) -> None:
    """What is true of every reading."""
    assert reading.edits or reading.unfit or reading.dropped
    assert len(reading.edits) + len(reading.unfit) <= limit
    identities = {apply(kernel, edit).identity for edit in reading.edits}
    assert len(identities) == len(reading.edits)
    for edit in (*reading.edits, *(each.edit for each in reading.unfit)):
        assert isinstance(edit.change, Patch | WholeSource)
        assert edit.title
        assert edit.title.isprintable()
        assert len(edit.title) <= MAX_TITLE
        assert edit.prior > 0.0
        json.dumps(edit.title, ensure_ascii=False).encode()
    assert all(edit.prior <= 1.0 for edit in reading.edits)
    for sentence in (each.reason for each in (*reading.unfit, *reading.dropped)):
        assert 0 < len(sentence) < 2_000
        sentence.encode()
