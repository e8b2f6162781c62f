"""Every term moves the price the right way, in the right unit."""

from dataclasses import replace

import pytest

from mctskernel.profiling.architecture import load_architecture, occupancy
from mctskernel.profiling.machine_code.functions import Pipe
from mctskernel.profiling.model.price import (
    Term,
    price,
    shares,
)
from mctskernel.profiling.model.scoreboard import Chain
from mctskernel.profiling.model.work import KernelWork

H100 = load_architecture("H100")
COPY = KernelWork(
    kernel="copy",
    blocks=13200,
    threads=256,
    registers=32,
    shared_bytes=0,
    occupancy=occupancy(H100, 256, 32, 0),
    instructions={Pipe.LSU: 2e6, Pipe.ALU: 4e6},
    chain=Chain(900.0, global_memory=740.0),
    global_wavefronts=2e6,
    l2_read_sectors=4e6,
    l2_write_sectors=4e6,
    store_lines=1e6,
    dram_read_bytes=1.28e8,
    dram_write_bytes=1.28e8,
    unique_bytes=2.56e8,
)


def test_a_copy_takes_about_what_dram_takes() -> None:
    floor = 2.56e8 / H100.memory.dram_bytes_per_second
    assert floor < price(COPY, H100).seconds < 1.4 * floor


@pytest.mark.parametrize(
    ("change", "term"),
    [
        ({"dram_read_bytes": 1e10}, Term.DRAM),
        ({"l2_read_sectors": 1e9}, Term.L2),
        ({"global_wavefronts": 1e9}, Term.GLOBAL_WAVEFRONTS),
        ({"shared_wavefronts": 1e9}, Term.SHARED_WAVEFRONTS),
        ({"instructions": {Pipe.FMA: 1e10}}, Term.FMA),
        ({"instructions": {Pipe.SPECIAL: 1e9}}, Term.SPECIAL),
        ({"instructions": {Pipe.CONTROL: 1e10}}, Term.ISSUE),
        ({"tensor_multiply_adds": 1e13}, Term.TENSOR),
        ({"chain": Chain(1e6)}, Term.LATENCY),
        ({"atomic_turns": 1e7, "atomic_lanes": 1e7}, Term.ATOMICS),
        ({"blocks": 10**8, "chain": Chain(1.0), "occupancy": occupancy(H100, 64, 32, 0)}, Term.BLOCK_LAUNCH),
    ],
)
def test_more_of_something_costs_more_and_is_what_binds(change: dict[str, object], term: Term) -> None:
    before, after = price(COPY, H100), price(replace(COPY, **change), H100)  # type: ignore[arg-type]
    assert after.seconds > 3 * before.seconds
    found = shares(after.terms)
    assert found[term] == max(found.values())
