"""One launch of a kernel that a test wrote."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mctskernel.profiling.emulator import Execution, Geometry, GlobalMemory, Module, execute

Compiler = Callable[[str], Module]


def launched(
    module: Module,
    buffers: Mapping[str, Any],
    blocks: int = 1,
    threads: int = 32,
    *,
    numbers: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Execution, GlobalMemory]:
    """What the kernel `k` does to buffers with these contents, or of so many bytes; those called `a` are read-only."""
    memory = GlobalMemory()
    arguments = [memory.add(name, contents, writable=name != "a") for name, contents in buffers.items()]
    geometry = Geometry((blocks, 1, 1), (threads, 1, 1))
    return execute(module, "k", geometry, arguments, memory, blocks=numbers, **options), memory
