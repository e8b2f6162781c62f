"""Confining the running process: what a worker calls on itself before it meets anything hostile.

Every mechanism is tried; one that this machine lacks is reported and the others are used. None can be undone, and
all of them hold for whatever the process starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mctskernel.profiling.isolation import landlock, privileges, proc_mounts, seccomp
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.isolation.policy import Confinement


@dataclass(frozen=True)
class Mechanism:
    """One way to confine a process, whether it is in force in this one, and what the kernel said to it."""

    name: str
    in_force: bool
    detail: str = ""


def confine(policy: Confinement) -> tuple[Mechanism, ...]:
    """Confine this process for good: `enclose`, then `seal`. What was tried, in order; raises nothing.

    Call it after imports and whatever else needs more than the policy gives, and before the first byte of a
    candidate is looked at. Files stay open and mappings stay mapped: what the process holds already, it keeps.
    Landlock (the files) holds for the calling thread and what it starts, and on kernels before 7.0 not for threads
    that run already; a process in which a candidate's own code will run should therefore `enclose` itself first
    of all, before it has threads, and `seal` itself when the candidate comes.
    """
    return (*enclose(policy), *seal(policy))


def enclose(policy: Confinement) -> tuple[Mechanism, ...]:
    """No network, no files besides the policy's, no privileges, no view of other processes' memory.

    Loading programs, libraries and CUDA goes on to work. Best called before there are threads.
    """
    isolated: tuple[Mechanism, ...] = (
        _try("network namespace", privileges.leave_network),
        # Behind it: in a user namespace of our own nobody else's processes are counted.
        _try("process limit", lambda: privileges.limit_processes(policy.processes)),
    )
    if policy.names_threads:
        # While root still may mount. Without what this does, nobody gets the right.
        naming = _try("thread names", proc_mounts.keep_all_but_processes)
        policy = replace(policy, names_threads=naming.in_force)
        isolated = (*isolated, naming)
    return (
        *isolated,
        _try("capabilities", lambda: privileges.drop_capabilities(policy.capabilities)),
        _try("no new privileges", privileges.forbid_new_privileges),
        _try("Landlock", lambda: f"version {landlock.restrict(policy).version}"),
        _try("hidden memory", privileges.hide_memory),
        _try("size limits", lambda: privileges.limit_sizes(policy.memory_bytes, policy.file_bytes)),
    )


def seal(policy: Confinement) -> tuple[Mechanism, ...]:
    """No system calls besides those that an evaluation needs, in all threads: no sockets, and no new processes
    where the policy has none.
    """
    return (_try("seccomp", lambda: seccomp.install(policy)),)


def _try(name: str, mechanism: Callable[[], str | None]) -> Mechanism:
    try:
        return Mechanism(name, in_force=True, detail=mechanism() or "")
    except (RefusedByKernelError, OSError, ValueError) as error:
        return Mechanism(name, in_force=False, detail=str(error))
