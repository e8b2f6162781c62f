"""A seccomp filter: the kernel refuses a process and its children the system calls that no kernel evaluation needs.

Refusals are errors (EPERM), so that libraries that only try one go on without it. Calls that are newer than this
list don't exist for the process (ENOSYS). The call numbers are those of asm/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mctskernel.profiling.isolation.kernel_calls import (
    AARCH64,
    X86_64,
    RefusedByKernelError,
    architecture,
    call,
)
from mctskernel.profiling.isolation.policy import Confinement

_REFUSED_CALLS = {
    "the network": """
        socket 41 198, connect 42 203, accept 43 202, bind 49 200, listen 50 201, accept4 288 242,
        io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427
    """,
    "other processes": """
        ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
        pidfd_getfd 438 438, process_madvise 440 440, process_mrelease 448 448, migrate_pages 256 238,
        move_pages 279 239, ioprio_set 251 30, setsid 112 157
    """,
    "memory that processes share by name": """
        shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191,
        semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
        mq_unlink 241 181
    """,
    "file systems": """
        mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428,
        move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
        mount_setattr 442 442, open_tree_attr 467 467, name_to_handle_at 303 264,
        open_by_handle_at 304 265, fanotify_init 300 262, quotactl 179 60, quotactl_fd 443 443,
        swapon 167 224, swapoff 168 225, acct 163 89
    """,
    "the kernel": """
        setns 308 268, unshare 272 97, keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280,
        perf_event_open 298 241, userfaultfd 323 282, kexec_load 246 104, kexec_file_load 320 294,
        init_module 175 105, finit_module 313 273, delete_module 176 106, reboot 169 142,
        settimeofday 164 170, clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171,
        sethostname 170 161, setdomainname 171 162, iopl 172 -, ioperm 173 -, modify_ldt 154 -,
        syslog 103 116, personality 135 92, vhangup 153 58, nfsservctl 180 42, lookup_dcookie 212 18
    """,
}
"""What is refused, and why: each call's name, its number on x86-64 and on aarch64 (- where it has none).

io_uring does what the network's other calls do, past this filter; what setsid starts would outlive our session.
"""

REFUSED: dict[str, tuple[int | None, ...]] = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for calls in _REFUSED_CALLS.values()
    for name, *numbers in (call.split() for call in calls.split(","))
}
_LAST_KNOWN_CALL = 469

_AUDIT_NAMES = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
_SECCOMP = {X86_64: 317, AARCH64: 277}
_SET_FILTER, _ALL_THREADS = 1, 1

_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_LOAD_WORD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_CLONE_THREAD = 0x10000
_NEW_NAMESPACES = 0x7E020080
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_TERMINAL_INPUT, _TERMINAL_LINUX, _SET_OWNER, _SET_GROUP = 0x5412, 0x541C, 0x8901, 0x8902
_EVERYBODY = 0xFFFFFFFF

Instruction = tuple[int, int, int, int]
"""Operation, how many instructions to skip when it holds, how many when not, a constant."""


@dataclass(frozen=True)
class _ByArgument:
    """Refuses a call by the low 32 bits of one of its arguments: when the test holds, or when it doesn't."""

    numbers: tuple[int | None, int | None]
    argument: int
    operation: int
    constant: int
    refused_when: bool = True


def filter_program(policy: Confinement, machine: str, own_pid: int) -> tuple[Instruction, ...]:
    """The filter of a policy for `x86_64` or `aarch64`, for the process `own_pid`."""
    column = (X86_64, AARCH64).index(machine)
    numbers = [each[column] for each in REFUSED.values()]
    if policy.processes == 0:
        numbers += [57, 58] if machine == X86_64 else []
    program: list[Instruction] = [
        # Other instruction sets, and calls that are newer than the list.
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _AUDIT_NAMES[machine]),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _LAST_KNOWN_CALL + 1),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        # Its flags are in memory, where no filter can look; C libraries fall back on clone.
        (_EQUAL, 0, 1, 435),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for number in numbers:
        if number is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    for rule in _by_argument(policy, own_pid):
        if (number := rule.numbers[column]) is not None:
            program += _refusing_by_argument(number, rule)
    return (*program, (_RETURN, 0, 0, _ALLOW))


def install(policy: Confinement) -> None:
    """Filter calls, of new processes too, for good; needs no new privileges. Raises RefusedByKernelError."""
    machine = architecture()
    if machine is None:
        raise RefusedByKernelError("seccomp: not on this kind of machine")
    program = filter_program(policy, machine, os.getpid())
    code = b"".join(struct.pack("<HBBI", *each) for each in program)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(instructions))
    described = ctypes.create_string_buffer(header, len(header))
    if call("seccomp", _SECCOMP[machine], _SET_FILTER, _ALL_THREADS, described):
        # A thread has a filter that this one hasn't: then for this one and what it starts.
        call("seccomp", _SECCOMP[machine], _SET_FILTER, 0, described)


def _by_argument(policy: Confinement, own_pid: int) -> Iterable[_ByArgument]:
    """Calls that are needed, but not with every argument."""
    clone = (56, 220)
    yield _ByArgument(clone, 0, _ANY_BIT, _NEW_NAMESPACES)
    if policy.processes == 0:
        yield _ByArgument(clone, 0, _ANY_BIT, _CLONE_THREAD, refused_when=False)
    # Limits and priorities of other processes: any process may lower those of its user's.
    for numbers in ((302, 261), (203, 122), (144, 119), (142, 118), (314, 274)):
        yield _ByArgument(numbers, 0, _EQUAL, 0, refused_when=False)
    # setpriority: of this process alone (PRIO_PROCESS, 0), not of all of a user's (PRIO_USER, 0).
    for argument in (0, 1):
        yield _ByArgument((141, 140), argument, _EQUAL, 0, refused_when=False)
    # Having the kernel signal somebody else.
    for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX):
        yield _ByArgument((72, 25), 1, _EQUAL, command)
    for command in (_TERMINAL_INPUT, _TERMINAL_LINUX, _SET_OWNER, _SET_GROUP):
        yield _ByArgument((16, 29), 1, _EQUAL, command)
    kill, queue = (62, 129), (129, 138)
    for numbers in (kill, queue):
        for target in (_EVERYBODY, os.getppid()):
            yield _ByArgument(numbers, 0, _EQUAL, target)
    if policy.processes == 0:
        for numbers in (kill, queue, (234, 131), (297, 240)):
            yield _ByArgument(numbers, 0, _EQUAL, own_pid, refused_when=False)


def _refusing_by_argument(number: int, rule: _ByArgument) -> list[Instruction]:
    jumps = (0, 1) if rule.refused_when else (1, 0)
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD_WORD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument),
        (rule.operation, *jumps, rule.constant),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
    ]
