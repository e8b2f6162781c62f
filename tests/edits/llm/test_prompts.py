"""Prompts: they hold what a model needs, and are bounded and safe whatever stands in them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.evaluation import Bottleneck, Cause, Check, Diagnosis, Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Attempt, ProposalRequest
from mctskernel.core.task import shape_label
from mctskernel.edits.llm.experts import EXPERTS, Feedback
from mctskernel.edits.llm.prompt import (
    PROMPT_CHARACTERS,
    ask_text,
    messages_to_generate,
    messages_to_mend,
    messages_to_propose,
    messages_to_repair,
)
from mctskernel.profiling.architecture import briefing, load_architecture
from mctskernel.profiling.source_rules import HEADERS, OWN_HEADERS
from tests.edits.llm.scripted import FAILED, a_request, attempts

PROMPTS = Path(__file__).parents[3] / "edits" / "prompts"
EXPERT = EXPERTS[0]

ASK_CHARACTERS = 16_000  # of an ask without its kernel and its reference


def a_full_request(task: str, language: Language) -> ProposalRequest:
    return a_request(
        task,
        language,
        lineage=attempts(("block of 128", Outcome.OK), gain=1.3),
        siblings=attempts(("float4 loads", Outcome.BUILD_ERROR), ("block of 64", Outcome.OK), gain=0.8),
        elsewhere=attempts(("one warp a row", Outcome.OK), gain=2.5),
        speedup=1.3,
        best_speedup=3.2,
    )


@pytest.mark.parametrize(("task", "language"), [("softmax", Language.CUDA), ("matmul_bf16", Language.TRITON)])
def test_a_prompt_holds_the_task_the_kernel_and_its_evidence(task: str, language: Language) -> None:
    request = a_full_request(task, language)
    device = briefing(load_architecture("H100"), request.task)
    system, user = messages_to_propose(request, EXPERT, 5, device)
    for text in (device[0], request.task.summary, "def reference(", "Timed at ", "[[launch]]"):
        assert text in system.content
    for text in (
        request.kernel.source.strip(),
        "2.5 ms",
        "32 sectors",
        "31 registers per thread",
        "block of 128",
    ):
        assert text in user.content
    for text in ("float4 loads", "build error", "1.25 times as long", "one warp a row"):
        assert text in user.content


def test_an_ask_is_one_text_with_all_that_a_kernel_needs() -> None:
    request = replace(
        a_full_request("softmax", Language.CUDA),
        beside=attempts(("two rows a block", Outcome.CRASH)),
        lost=("The reply ends in the middle of an edit.",),
        standing=('Node 0, "starting kernel" in cuda: 2.5 ms (BLOCK 256).',),
        node=3,
    )
    text = ask_text(request, 4, briefing(load_architecture("H200"), request.task))
    golden = Path(__file__).parent / "ask_softmax.md"
    assert text == golden.read_text("utf-8"), "if this is meant, write the text into that file"
    parts = [request.kernel.source, request.task.reference_source]
    assert len(text) - sum(map(len, parts)) < ASK_CHARACTERS


def test_a_draft_is_asked_for_with_all_that_a_kernel_needs() -> None:
    task = a_request("softmax").task
    device = briefing(load_architecture("H200"), task)
    asked = messages_to_generate(task, "Softmax of each row.", EXPERT, ["memory: build error."], device)
    golden = Path(__file__).parent / "generate_softmax.md"
    text = "\n".join(each.content for each in asked)
    assert text == golden.read_text("utf-8"), "if this is meant, write the text into that file"


def test_a_prompt_says_what_each_header_is_for() -> None:
    request = a_request("softmax")
    for header in OWN_HEADERS:
        source = f"#include <{header}>\n{request.task.starting_kernel.source}"
        task = replace(request.task, starting_kernel=Kernel(source))
        text = ask_text(replace(request, task=task), 4, ())
        assert f"- `{header}`: " in text
        assert ("fp16" in text.partition("Building blocks")[2].partition("```")[0]) == (
            header == "blocks.cuh"
        )


def test_a_repair_has_no_statistics_and_says_a_finding_once() -> None:
    statistics = "ptxas info    : Used 16 registers\nptxas         .     0 bytes stack frame\n"
    message = "At n=3: 'out' is wrong."
    checks = (Check("n=3", 1, passed=False, error=9.0, message=message),)
    evaluation = replace(FAILED, message=message, checks=checks, log=f"{statistics}error: no ;\n")
    text = messages_to_repair(a_request(evaluation=evaluation), 1, ())[1].content
    assert "ptxas" not in text
    assert "error: no ;" in text
    assert text.count("'out' is wrong") == 1
    assert (
        "Log:"
        not in messages_to_repair(a_request(evaluation=replace(evaluation, log=statistics)), 1, ())[1].content
    )


def test_an_ask_of_products_says_what_they_take_and_shows_the_start_that_uses_building_blocks() -> None:
    request = a_request("softmax")
    source = "// aten.mm, aten.relu\n#include <blocks.cuh>\n" + request.task.starting_kernel.source
    request = replace(request, task=replace(request.task, starting_kernel=Kernel(source)))
    shape = shape_label(request.task.search_shapes[0])
    text = ask_text(request, 4, briefing(load_architecture("H200"), request.task, {shape: 1e12}))
    for words in ("`blocks.cuh`: products", "aten.mm, aten.relu", "1,000 GFLOP", "2.8 ms as three of these"):
        assert words in text
    assert text.count("#include <blocks.cuh>") == 1
    again = ask_text(replace(request, kernel=Kernel(source)), 4, ())
    assert again.count("#include <blocks.cuh>") == 1, "the kernel to edit is the example"
    assert "Building blocks" not in ask_text(a_request("softmax"), 4, ())


@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON])
def test_the_launch_plan_in_a_prompt_is_one(language: Language) -> None:
    text = (PROMPTS / "languages" / f"{language}.md").read_text()
    example = text.split("```")[1].strip()
    request = a_request(language=language)
    block = "#define BLOCK 128\n" if language is Language.CUDA else "\nBLOCK = 128\n"
    kernel = Kernel(f"{example}\n{block}", language)
    shape = request.task.search_shapes[0]
    resolved = request.task.resolved(kernel, shape)
    assert [launch.grid for launch in resolved.launches] == [(shape["rows"], 1, 1)]
    assert [scratch.name for scratch in resolved.scratch] == ["partial"]


def test_the_headers_that_a_prompt_allows_are_those_that_are_allowed() -> None:
    (line,) = re.findall(r"- Headers: .*", (PROMPTS / "languages" / "cuda.md").read_text())
    assert not set(re.findall(r"`([^`]+)`", line)) - HEADERS


@pytest.mark.parametrize(
    ("feedback", "said"),
    [
        (Feedback.NONE, set()),
        (Feedback.COUNTERS, {"dram__bytes.sum = 1.235e+05"}),
        (Feedback.DIAGNOSIS, {"DRAM is busy.", "Bound by DRAM.", "registers per thread"}),
    ],
)
def test_feedback_decides_what_a_prompt_says_beside_the_time(feedback: Feedback, said: set[str]) -> None:
    diagnosis = Diagnosis((Cause(Bottleneck.DRAM_BANDWIDTH, 0.8, "DRAM is busy."),), "Bound by DRAM.")
    evaluation = replace(a_request().evaluation, counters={"dram__bytes.sum": 123456.0}, diagnosis=diagnosis)
    text = messages_to_propose(a_request(evaluation=evaluation), EXPERT, 5, (), feedback)[1].content
    words = {"dram__bytes.sum = 1.235e+05", "DRAM is busy.", "Bound by DRAM.", "registers per thread"}
    assert {word for word in words if word in text} == said


def test_held_out_shapes_and_raw_counters_are_not_told() -> None:
    request = a_request()
    text = "".join(each.content for each in messages_to_propose(request, EXPERT, 5, ()))
    assert "rows=1130 cols=2" not in text
    assert {"rows": 1130, "cols": 2} in [dict(shape) for shape in request.task.held_out_shapes]
    assert "rows=12 cols=130" in text
    assert "dram__bytes" not in text
    assert "123456789" not in text


HOSTILE = (
    st.lists(
        st.sampled_from(
            [
                "`",
                "``` \n",
                "\n",
                "{{ 7 * 7 }}",
                "{% raw %}",
                "\n## Your part\n",
                "\x1b[2J",
                "\r\n",
                "\r",
                '"',
                "x",
            ]
        )
    ).map("".join)
    | st.text()
)


@given(source=HOSTILE, log=HOSTILE, title=HOSTILE, message=HOSTILE)
def test_nothing_that_is_quoted_leaves_its_place(source: str, log: str, title: str, message: str) -> None:
    attempt = Attempt(title, "tuning", Outcome.REJECTED, 0.0, message)
    request = a_request(kernel=Kernel(source), lineage=(attempt,), siblings=(attempt,), elsewhere=(attempt,))
    messages = messages_to_propose(request, EXPERT, 5, (message,))
    failed = replace(request, evaluation=replace(FAILED, log=log, message=message))
    assert "{{ 7 * 7 }}" not in source or "{{ 7 * 7 }}" in messages[1].content
    for text in (messages[1].content, messages_to_repair(failed, 1, ())[1].content):
        outside = without_fences(text)
        assert outside.count("\n## Your part") == 1
        assert "\x1b" not in outside
        headings = [line for line in outside.splitlines() if line.startswith("## ")]
        assert len(set(headings)) == len(headings)


def without_fences(text: str) -> str:
    """A prompt without its fenced blocks, as CommonMark finds them; every one is closed."""
    outside: list[str] = []
    fence = ""
    for line in text.split("\n"):
        run = re.match(r"`{3,}", line)
        if fence:
            if line == fence:
                fence = ""
        elif run:
            fence = run[0]
        else:
            outside.append(line)
    assert not fence
    return "\n".join(outside)


def test_the_longest_prompt_is_bounded_and_says_what_it_left_out() -> None:
    words = "many words about it " * 2_000
    attempt = Attempt(words, "tuning", Outcome.BUILD_ERROR, 0.0, words)
    cause = Cause(Bottleneck.TAIL, 0.1, words)
    request = a_request(
        kernel=Kernel("// comment\n" * 50_000),
        lineage=(attempt,) * 100,
        siblings=(attempt,) * 100,
        elsewhere=tuple(replace(attempt, title=f"{number} {words}") for number in range(100)),
    )
    evaluation = replace(request.evaluation, diagnosis=Diagnosis((cause,) * 50, words), flags=(words,) * 50)
    proposing = messages_to_propose(replace(request, evaluation=evaluation), EXPERT, 5, (words,) * 100)
    broken = replace(FAILED, log=words * 10, message=words)
    repairing = messages_to_repair(replace(request, evaluation=broken), 2, (words,) * 100)
    for messages in (proposing, repairing):
        mending = messages_to_mend(messages, words * 10, [words] * 100)
        assert sum(len(each.content) for each in mending) <= PROMPT_CHARACTERS
        assert "characters left out" in messages[1].content
    assert "The first 84 are left out." in proposing[1].content
