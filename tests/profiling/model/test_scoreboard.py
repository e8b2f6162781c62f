"""A warp's way through machine code, written by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.instructions import NO_BARRIER, Instruction
from mctskernel.profiling.model.scoreboard import Chain, mean_chain, path_chain

LATENCIES = {
    "LDG": (500.0, "global"),
    "LDGSTS": (500.0, "global"),
    "LDS": (30.0, "shared"),
    "BAR": (20.0, "barrier"),
    "HGMMA": (128.0, "tensor"),
}


def instruction(
    opcode: str,
    *,
    sets: int = NO_BARRIER,
    waits: tuple[int, ...] = (),
    stall: int = 1,
    operands: str = "",
    at: int = 0,
) -> Instruction:
    return Instruction(at, "", opcode, operands, None, None, None, stall, sets, NO_BARRIER, waits)


def function(*code: Instruction) -> Function:
    placed = [
        Instruction(16 * index, *(getattr(each, name) for name in each.__slots__[1:]))
        for index, each in enumerate(code)
    ]
    return Function("k", tuple(placed))


def cycles(*code: Instruction, times: int = 1) -> Chain:
    return path_chain(function(*code), [0] * times, lambda each: LATENCIES.get(each.mnemonic, (4.0, "other")))


def test_a_load_is_waited_for_where_its_scoreboard_is() -> None:
    found = cycles(instruction("LDG", sets=0), instruction("FADD", waits=(0,)))
    assert found.cycles == 501
    assert found.global_memory == 499


def test_loads_in_flight_together_are_waited_for_once() -> None:
    apart = cycles(
        *(part for n in range(4) for part in (instruction("LDG", sets=n), instruction("FADD", waits=(n,))))
    )
    together = cycles(
        *(instruction("LDG", sets=n) for n in range(4)), *(instruction("FADD", waits=(n,)) for n in range(4))
    )
    assert apart.cycles > 3.9 * together.cycles


def test_a_group_of_copies_may_stay_pending_while_an_older_one_is_waited_for() -> None:
    copies = [instruction("LDGSTS"), instruction("LDGDEPBAR"), instruction("IADD3", stall=15)]
    one_behind = cycles(*copies, instruction("DEPBAR.LE", operands="SB0, 0x1"), times=50)
    none_behind = cycles(*copies, instruction("DEPBAR.LE", operands="SB0, 0x0"), times=50)
    assert none_behind.cycles > 1.9 * one_behind.cycles
    assert none_behind.global_memory > 50 * 450


def test_products_of_a_warp_group_queue_up_until_they_are_waited_for() -> None:
    products = [instruction("HGMMA.64x128x16.F32.BF16") for _ in range(4)]
    found = cycles(*products, instruction("WARPGROUP.DEPBAR.LE", operands="gsb0, 0x0"))
    assert found.cycles == 4 * 128 + 1
    assert cycles(*products).cycles == 4 * 128, "the warp isn't done before its products are"


def test_barriers_are_waited_for_at_once() -> None:
    assert cycles(instruction("BAR.SYNC"), times=10).barriers == 200


STEPS = st.sampled_from(
    [
        instruction("LDG", sets=0),
        instruction("LDG", sets=1, stall=3),
        instruction("LDS", sets=2),
        instruction("FADD", waits=(0,)),
        instruction("FADD", waits=(1, 2), stall=5),
        instruction("LDGSTS"),
        instruction("LDGDEPBAR"),
        instruction("DEPBAR.LE", operands="SB0, 0x1"),
        instruction("HGMMA.64x64x16.F32.BF16"),
        instruction("WARPGROUP.DEPBAR.LE", operands="gsb0, 0x0"),
        instruction("BAR.SYNC"),
    ]
)


@settings(deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=8), st.integers(1, 40))
def test_states_that_come_again_are_remembered_right(code: list[Instruction], times: int) -> None:
    """A loop that is followed by remembered states takes as long as its copies written one after the other."""
    looped, unrolled = cycles(*code, times=times), cycles(*(code * times))
    assert abs(looped.cycles - unrolled.cycles) < 1e-6
    assert abs(looped.global_memory - unrolled.global_memory) < 1e-6


def test_the_mean_of_chains_is_taken_part_by_part() -> None:
    assert mean_chain([Chain(10, 4, 2, 0), Chain(30, 8, 0, 2)]) == Chain(20, 6, 1, 1)
