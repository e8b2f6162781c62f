"""The diagnosis names what was planted, modelled or measured, with its numbers, and the strongest cause first."""

from dataclasses import replace

import pytest

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import load_architecture, occupancy
from mctskernel.profiling.causes import combined_diagnosis
from mctskernel.profiling.counters import modelled_counters
from mctskernel.profiling.diagnosis import diagnose, diagnose_counters
from mctskernel.profiling.machine_code.functions import Pipe
from mctskernel.profiling.model.price import price
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
    priced = price(work, H100)
    return diagnose(work, priced, H100, modelled_counters(work, priced, H100)).causes[0]


def access(space: str, **numbers: float) -> AccessPattern:
    known = {"requests": 1e6, "lanes": 32e6, "sectors": 0.0, "ideal_sectors": 0.0}
    known |= {"wavefronts": 1e6, "ideal_wavefronts": 1e6} | numbers
    return AccessPattern(space, "load", 14, "x", 4, **known)


@pytest.mark.parametrize(
    ("changes", "bottleneck", "words"),
    [
        ({"dram_read_bytes": 1e10, "unique_bytes": 1e10}, Bottleneck.DRAM_BANDWIDTH, "10 GB move at"),
        ({"instructions": {Pipe.SPECIAL: 1e9}}, Bottleneck.SPECIAL_FUNCTIONS, "exp, sqrt"),
        ({"chain": Chain(1e5, global_memory=9e4)}, Bottleneck.GLOBAL_LATENCY, "waits for loads 90% of"),
        ({"chain": Chain(1e5, barriers=9e4)}, Bottleneck.BARRIERS, "waits at barriers 90% of its time"),
        ({"spill_wavefronts": 1e9, "spill_bytes": 96}, Bottleneck.SPILLS, "96 bytes per thread"),
        ({"blocks": 2, "chain": Chain(0.0)}, Bottleneck.TOO_FEW_BLOCKS, "130 of 132 SMs idle"),
        (
            {"global_wavefronts": 1e9, "accesses": (access("global", sectors=32e6, ideal_sectors=4e6),)},
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
            "each warp load of x (line 14) takes 16 where 1 would do",
        ),
    ],
)
def test_what_was_planted_in_a_modelled_kernel_comes_first_with_its_numbers(
    changes: dict[str, object], bottleneck: Bottleneck, words: str
) -> None:
    cause = strongest(**changes)
    assert cause.bottleneck is bottleneck
    assert words in cause.sentence
    assert 0.3 < cause.share <= 1.0


def test_where_several_kernels_run_a_sentence_says_of_which_it_speaks() -> None:
    first = Diagnosis((Cause(Bottleneck.TAIL, 1.0, "Tail: a."),))
    second = Diagnosis((Cause(Bottleneck.ATOMICS, 1.0, "Atomics: b."),))
    plan = [(first, 1.0), (second, 3.0)]
    several = combined_diagnosis(plan, ["partial", "final"]).causes
    assert [cause.sentence for cause in several] == ["In final: Atomics: b.", "In partial: Tail: a."]
    assert combined_diagnosis(plan, ["same", "same"]).causes[0].sentence == "Atomics: b."
    assert combined_diagnosis(plan, ["not", "as", "many"]).causes[0].sentence == "Atomics: b."


def test_what_launching_takes_is_one_cause_for_all_launches() -> None:
    launch = Diagnosis((Cause(Bottleneck.LAUNCH_OVERHEAD, 0.5, "a"), Cause(Bottleneck.ATOMICS, 0.5, "b")))
    found = combined_diagnosis([(launch, 2e-6)] * 3, ["x", "y", "z"], gap=1e-6).causes
    assert found[0].bottleneck is Bottleneck.LAUNCH_OVERHEAD
    assert found[0].share == pytest.approx(5 / 8)
    assert "starting 3 launches takes 5" in found[0].sentence
    assert combined_diagnosis([(launch, 2e-6)]) == launch


# Read with the default set on an H100, of kernels that each stress one unit: a copy, a transpose, conflicts of banks.
READ = {
    names.TIME: (9.178e-05, 5.864e-4, 4.295e-3),
    names.ISSUE_ACTIVE: (3.731, 3.71, 4.992),
    names.SM_ACTIVE: (97.04, 98.78, 99.66),
    names.DRAM_BYTES: (2.674e8, 2.836e8, None),
    names.DRAM_THROUGHPUT: (86.94, 14.43, 1.891),
    names.LOAD_REQUESTS: (262144.0, 1.049e6, None),
    names.LOAD_SECTORS: (4.194e6, 4.194e6, None),
    names.STORE_REQUESTS: (262144.0, 1.049e6, None),
    names.STORE_SECTORS: (4.194e6, 3.355e7, None),
    names.WAVEFRONTS: (2.599e6, 3.816e7, 1.113e9),
    names.WAVEFRONTS_BUSY: (10.98, 24.89, 99.17),
    names.SHARED_WAVEFRONTS: (None, 2.097e6, 1.111e9),
    names.BANK_CONFLICTS: (None, None, 1.074e9),
    names.L2_SECTORS: (8.389e6, 3.775e7, None),
    names.L2_BUSY: (34.03, 23.76, None),
    names.STALL_LONG_SCOREBOARD: (320.4, 75.39, None),
}


@pytest.mark.parametrize(
    ("kernel", "access_bytes", "bottleneck", "words"),
    [
        (0, 16, Bottleneck.DRAM_BANDWIDTH, "267 MB move at 2.91 TB/s, 94% of what a copy reaches"),
        (1, 4, Bottleneck.UNCOALESCED_ACCESS, "each warp store touches 32 sectors where 4"),
        (2, 4, Bottleneck.BANK_CONFLICTS, "1.07 billion of 1.11 billion cycles of shared memory (97%)"),
    ],
)
def test_what_was_planted_in_a_measured_kernel_comes_first_with_its_numbers(
    kernel: int, access_bytes: int, bottleneck: Bottleneck, words: str
) -> None:
    counters = {name: found[kernel] for name, found in READ.items() if found[kernel] is not None}
    cause = diagnose_counters(counters, H100, access_bytes).causes[0]
    assert cause.bottleneck is bottleneck
    assert words in cause.sentence
    assert 0.4 < cause.share <= 1.0


@pytest.mark.parametrize(
    ("stall", "bottleneck"),
    [
        (names.STALL_LONG_SCOREBOARD, Bottleneck.GLOBAL_LATENCY),
        (names.STALL_BARRIER, Bottleneck.BARRIERS),
        (names.STALL_LG_THROTTLE, Bottleneck.L1_THROUGHPUT),
    ],
)
def test_where_nothing_is_busy_the_stalls_say_what_is_waited_for(stall: str, bottleneck: Bottleneck) -> None:
    counters = {names.TIME: 1e-3, names.ISSUE_ACTIVE: 10.0, names.WARPS_ACTIVE: 80.0, stall: 100.0}
    cause = diagnose_counters(counters, H100).causes[0]
    assert cause.bottleneck is bottleneck
    assert "78% of its time" in cause.sentence
