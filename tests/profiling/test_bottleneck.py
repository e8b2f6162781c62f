"""The diagnosis names what was planted, with its numbers, and the strongest cause first."""

from dataclasses import replace

import pytest

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, Outcome, Source, Timing
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import load_architecture, occupancy
from mctskernel.profiling.bottleneck import account, combined_diagnosis, diagnose
from mctskernel.profiling.machine_code.functions import Pipe
from mctskernel.profiling.model.price import Price, Term, price
from mctskernel.profiling.model.scoreboard import Chain
from mctskernel.profiling.model.work import AccessPattern, KernelWork

H100 = load_architecture("H100")
PLAIN = KernelWork(
    kernel="k",
    blocks=13200,
    threads=256,
    registers=32,
    shared_bytes=0,
    occupancy=occupancy(H100, 256, 32, 0),
    instructions={Pipe.ALU: 1e6},
    chain=Chain(100.0),
    dram_read_bytes=1e8,
    unique_bytes=1e8,
)


def strongest(**changes: object) -> Cause:
    work = replace(PLAIN, **changes)  # type: ignore[arg-type]
    return diagnose(work, price(work, H100), H100).causes[0]


def access(space: str, **numbers: float) -> AccessPattern:
    known = {"requests": 1e6, "lanes": 32e6, "sectors": 0.0, "ideal_sectors": 0.0}
    known |= {"wavefronts": 1e6, "ideal_wavefronts": 1e6} | numbers
    return AccessPattern(space, "load", 14, "x", 4, **known)


@pytest.mark.parametrize(
    ("changes", "bottleneck", "words"),
    [
        ({"dram_read_bytes": 1e10, "unique_bytes": 1e10}, Bottleneck.DRAM_BANDWIDTH, "10 GB move at"),
        ({"instructions": {Pipe.SPECIAL: 1e9}}, Bottleneck.SPECIAL_FUNCTIONS, "exp, sqrt"),
        ({"chain": Chain(1e5, global_memory=9e4)}, Bottleneck.GLOBAL_LATENCY, "waits 90,000 of its 100,000"),
        ({"chain": Chain(1e5, barriers=9e4)}, Bottleneck.BARRIERS, "waits about 90,000"),
        ({"blocks": 10**8}, Bottleneck.LAUNCH_OVERHEAD, "100,000,000 blocks"),
        ({"spill_wavefronts": 1e9, "spill_bytes": 96}, Bottleneck.SPILLS, "96 bytes per thread"),
        (
            {"instructions": {Pipe.FMA: 1e9}, "blocks": 2, "chain": Chain(0.0)},
            Bottleneck.TOO_FEW_BLOCKS,
            "130 of 132 SMs idle",
        ),
        (
            {
                "global_wavefronts": 1e9,
                "accesses": (access("global", sectors=32e6, ideal_sectors=4e6),),
            },
            Bottleneck.UNCOALESCED_ACCESS,
            "each warp load of x (line 14) touches 32 sectors where 4 would do, so 8 times",
        ),
        (
            {
                "shared_wavefronts": 1e9,
                "conflict_wavefronts": 9e8,
                "accesses": (access("shared", wavefronts=16e6),),
            },
            Bottleneck.BANK_CONFLICTS,
            "each warp load (line 14) takes 16 cycles where 1 would do",
        ),
    ],
)
def test_what_was_planted_comes_first_with_its_numbers(
    changes: dict[str, object], bottleneck: Bottleneck, words: str
) -> None:
    cause = strongest(**changes)
    assert cause.bottleneck is bottleneck
    assert words in cause.sentence
    assert 0.3 < cause.share <= 1.0


def test_low_occupancy_is_named_with_what_limits_it() -> None:
    cause = strongest(chain=Chain(1e5), registers=255, occupancy=occupancy(H100, 256, 255, 0))
    assert cause.bottleneck is Bottleneck.LOW_OCCUPANCY
    assert "limited by registers" in cause.sentence


def test_where_several_kernels_run_a_sentence_says_of_which_it_speaks() -> None:
    first = Diagnosis((Cause(Bottleneck.TAIL, 1.0, "Tail: a."),))
    second = Diagnosis((Cause(Bottleneck.ATOMICS, 1.0, "Atomics: b."),))
    plan = [(first, 1.0), (second, 3.0)]
    several = combined_diagnosis(plan, ["partial", "final"]).causes
    assert [cause.sentence for cause in several] == ["In final: Atomics: b.", "In partial: Tail: a."]
    assert combined_diagnosis(plan, ["same", "same"]).causes[0].sentence == "Atomics: b."
    assert combined_diagnosis(plan, ["not", "as", "many"]).causes[0].sentence == "Atomics: b."


@pytest.mark.parametrize(
    ("blocks", "words"), [(133, "133 blocks don't divide by 132 SMs"), (264, "at the end")]
)
def test_blocks_that_divide_evenly_are_not_blamed_for_the_tail(blocks: int, words: str) -> None:
    work = replace(PLAIN, blocks=blocks, chain=Chain(0.0), dram_read_bytes=0.0, instructions={Pipe.FMA: 1e9})
    tail = Price(2.0, {Term.FMA: 1.0, Term.TAIL: 1.0})
    causes = diagnose(work, tail, H100).causes
    assert any(words in cause.sentence for cause in causes if cause.bottleneck is Bottleneck.TAIL)


def test_the_account_is_the_models_or_else_the_counters() -> None:
    timing = Timing("n=1", 1e-4, 1e-4, 1e-4)
    modelled = Evaluation(Outcome.OK, Source.MODELLED, timings=(timing,), terms={Term.DRAM: 1e-4})
    assert "bound by DRAM" in account(modelled)[0]
    counted = {names.TIME: 1e-4, names.SM_ACTIVE: 100.0, names.ISSUE_ACTIVE: 90.0}
    measured = Evaluation(Outcome.OK, Source.MEASURED, timings=(timing,), counters=counted)
    assert "Bound by instruction issue" in account(measured)[0]
    assert account(replace(measured, counters={})) == ()
