"""The filter's numbers against the system's headers, and its decisions by an interpreter of its program."""

import errno
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.isolation import seccomp
from mctskernel.profiling.isolation.policy import Confinement

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOW = 0x7FFF0000
NOT_PERMITTED, NO_SUCH_CALL = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
OWN_PID = 4321
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}


def decide(processes: int, machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the filter of a policy says to a call, by an interpreter of its five operations."""
    program = seccomp.filter_program(Confinement(Path(), processes=processes), machine, OWN_PID)
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    memory = {0: number, 4: AUDIT[machine] if audit is None else audit}
    memory |= {16 + 8 * at: word & 0xFFFFFFFF for at, word in enumerate(words)}
    accumulator = at = 0
    while True:
        operation, when, otherwise, constant = program[at]
        at += 1
        match operation:
            case 0x06:
                return constant
            case 0x20:
                accumulator = memory[constant]
            case 0x15:
                at += when if accumulator == constant else otherwise
            case 0x35:
                at += when if accumulator >= constant else otherwise
            case 0x45:
                at += when if accumulator & constant else otherwise
            case _:
                raise AssertionError(f"operation {operation:#x}")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_are_those_of_the_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"there is no {header}")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    column = list(HEADERS).index(machine)
    for name, numbers in seccomp.REFUSED.items():
        if name in found:
            assert numbers[column] == int(found[name]), name


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 141), ("aarch64", 140)])
def test_a_process_sets_no_priority_but_its_own(machine: str, number: int) -> None:
    of_a_process, of_a_user = 0, 2
    assert decide(3, machine, number, of_a_process, 0) == ALLOW
    assert decide(3, machine, number, of_a_process, 77) == NOT_PERMITTED
    assert decide(3, machine, number, of_a_user, 0) == NOT_PERMITTED


@given(
    machine=st.sampled_from(["x86_64", "aarch64"]),
    number=st.integers(0, 1 << 31),
    first=st.integers(0, 1 << 32),
    processes=st.integers(0, 3),
)
def test_every_call_is_decided(machine: str, number: int, first: int, processes: int) -> None:
    decided = decide(processes, machine, number, first)
    assert decided in {ALLOW, NOT_PERMITTED, NO_SUCH_CALL}
    if number > 469:
        assert decided == NO_SUCH_CALL


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_threads_may_be_made_and_processes_only_where_the_policy_has_them(machine: str) -> None:
    thread, process, namespace = 0x3D0F00, 0x1200011, 0x1000_0000 | 0x1200011
    assert decide(0, machine, CLONE[machine], thread) == ALLOW
    assert decide(0, machine, CLONE[machine], process) == NOT_PERMITTED
    assert decide(4, machine, CLONE[machine], process) == ALLOW
    assert decide(4, machine, CLONE[machine], namespace) == NOT_PERMITTED
    assert decide(4, machine, 435) == NO_SUCH_CALL


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_calls_of_another_instruction_set_do_not_exist(machine: str) -> None:
    assert decide(0, machine, 1, audit=0x40000003) == NO_SUCH_CALL


def test_a_process_may_signal_itself() -> None:
    kill, tgkill = 62, 234
    for number in (kill, tgkill):
        assert decide(0, "x86_64", number, OWN_PID) == ALLOW
        assert decide(0, "x86_64", number, OWN_PID + 1) == NOT_PERMITTED
    assert decide(4, "x86_64", kill, -1) == NOT_PERMITTED
