"""Requests to the process that holds a GPU, and its replies.

It knows nothing of tasks: it keeps tensors, runs launches, and returns bytes, times and counters. Its parent decides
what is right. Bytes of tensors travel through a `SharedWindow`; offsets are into it.
"""

from __future__ import annotations

import math

import msgspec

from mctskernel.core.evaluation import Conditions
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.core.tensor_map import ResolvedTensorMap
from mctskernel.profiling.gpu.cuda_driver import Gpu
from mctskernel.profiling.processes.channel import Broken, Ready


class OpenGpu(msgspec.Struct, tag=True, frozen=True):
    """The first request: make a context on the GPU of this UUID, or the first. Answered by Opened or Broken."""

    service: str
    memory_bytes: int
    metrics: tuple[str, ...]
    gpu: str = ""


class Drawing(msgspec.Struct, frozen=True):
    """An input's distribution on the GPU and its own key; every `every`-th element from `first` is `special`."""

    key: int
    dtype: str
    distribution: str
    low: float
    high: float
    special: float = 0.0
    every: int = 0
    first: int = 0


class TensorPlace(msgspec.Struct, frozen=True):
    """A tensor of an arena: the contents of an input are in the window or drawn, once for each variant of the inputs.

    Without `offsets` and `drawings` it is filled with a 32-bit `poison`. `output` says that the kernel writes it; an
    output that has them is changed in place.
    """

    name: str
    nbytes: int
    offsets: tuple[int, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    poison: int = 0
    output: bool = False


class Place(msgspec.Struct, tag=True, frozen=True):
    """Put tensors on the GPU, until the process ends. Answered by Ready."""

    arena: int
    tensors: tuple[TensorPlace, ...]


class Code(msgspec.Struct, frozen=True):
    """Machine code, the kernels in it that will be launched, and its variables, reset before every run."""

    cubin: bytes
    entries: tuple[str, ...]
    variables: tuple[str, ...] = ()


class Load(msgspec.Struct, tag=True, frozen=True):
    """Load a kernel's machine code into a slot, in place of the previous one. Answered by Loaded."""

    slot: int
    codes: tuple[Code, ...]


class Packed(msgspec.Struct, frozen=True):
    """A number as the bytes that its parameter takes."""

    data: bytes


class PlannedLaunch(msgspec.Struct, frozen=True):
    """One launch: `code` is the index of its machine code; an argument is a number, or a buffer's or map's name."""

    code: int
    entry: str
    launch: ResolvedLaunch
    arguments: tuple[str | Packed, ...]


class ScratchPlace(msgspec.Struct, frozen=True):
    """A scratch buffer; `zero` means filled with zeros in the run itself."""

    name: str
    nbytes: int
    zero: bool


class Plan(msgspec.Struct, frozen=True):
    """One run of a slot's kernel on the tensors of an arena."""

    slot: int
    arena: int
    launches: tuple[PlannedLaunch, ...]
    scratch: tuple[ScratchPlace, ...] = ()
    tensor_maps: tuple[ResolvedTensorMap, ...] = ()


class Read(msgspec.Struct, frozen=True):
    """Bytes to fetch from a tensor: `rows` of `width` bytes, `pitch` apart, from `start`; to `offset`, packed."""

    tensor: str
    start: int
    rows: int
    width: int
    pitch: int
    offset: int


class Step(msgspec.Struct, frozen=True):
    """One run with fresh inputs and poisoned outputs, and the bytes to fetch afterwards."""

    plan: Plan
    reads: tuple[Read, ...]


class Run(msgspec.Struct, tag=True, frozen=True):
    """Run once each, in order. Answered by Ran."""

    steps: tuple[Step, ...]


class Wear(msgspec.Struct, tag=True, frozen=True):
    """Run a step after `times` runs of another plan in a row, without resetting variables. Answered by Ran."""

    before: Plan
    times: int
    step: Step


class Time(msgspec.Struct, tag=True, frozen=True):
    """Time a plan, interleaved with a baseline, on the variants of the inputs. Answered by Timed.

    The last `checked_only` variants hold what inputs seldom do: it runs on them once, to be checked, not to be timed.
    `seconds` is about how long the candidate's runs take together, `baseline_runs` the fewest runs of the baseline, as
    far as they fit into as much time again. `reads` are to be fetched after one run on each variant. A candidate whose
    first run takes long, and more than `hopeless_seconds`, makes one more, on another variant, and nothing else runs.
    """

    plan: Plan
    baseline: Plan
    seconds: float
    baseline_runs: int
    reads: tuple[tuple[Read, ...], ...]
    hopeless_seconds: float = math.inf
    checked_only: int = 0


class Recheck(msgspec.Struct, tag=True, frozen=True):
    """Run a plan as when it is timed, and stop at a random run; fetch its outputs. Answered by Rechecked."""

    plan: Plan
    baseline: Plan
    reads: tuple[tuple[Read, ...], ...]


class Count(msgspec.Struct, tag=True, frozen=True):
    """Read the counters of one run; `brief` leaves out those that need another. Answered by Counted."""

    plan: Plan
    brief: bool = False


class ReleaseCounters(msgspec.Struct, tag=True, frozen=True):
    """Let other processes read counters on the GPU. Answered by Ready."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The GPU; `counters` says why there are no counters, empty when there are.

    `state` says likewise why its clocks and its temperature aren't known. `free_bytes` is the memory that is left, 0
    where that is unknown.
    """

    gpu: Gpu
    counters: str
    state: str = ""
    free_bytes: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What can't be measured on this GPU, and why."""
        return tuple(sentence for sentence in (self.counters, self.state) if sentence)


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The most threads that a block of each kernel can have, by entry."""

    max_threads: dict[str, int]


class Ran(msgspec.Struct, tag=True, frozen=True):
    """The runs ended. `overruns` are buffers that were written beyond their ends, as sentences, by step.

    `foreign_write` is a sentence about other memory that was written, here and in other replies; empty when none was.
    """

    overruns: dict[int, str]
    foreign_write: str = ""


class TimedRun(msgspec.Struct, frozen=True):
    """One timed run: the variant of its inputs, the digest of its outputs, and whether the inputs are unchanged."""

    variant: int
    seconds: float
    outputs: int
    inputs_kept: bool


class Batch(msgspec.Struct, frozen=True):
    """Seconds from the first to the last of a batch of runs, by the host's clock and by the GPU's."""

    host_seconds: float
    gpu_seconds: float


class Timed(msgspec.Struct, tag=True, frozen=True):
    """Seconds of the runs that count, and of the baseline's runs among them.

    `runs` are all of the candidate's, in order, `fetched` the digests of the outputs that were fetched, by variant: of
    each one that it ran on.
    `digest_seconds` is the time of the digests. `conditions` are the GPU's clocks and temperature, None where they
    are unknown; `disturbed` says what disturbed the runs that count, as the end of a sentence.
    """

    samples: tuple[float, ...]
    baseline: tuple[float, ...]
    runs: tuple[TimedRun, ...]
    fetched: dict[int, int]
    batches: tuple[Batch, ...] = ()
    digest_seconds: float = 0.0
    overrun: str = ""
    foreign_write: str = ""
    conditions: Conditions | None = None
    disturbed: str = ""


class Rechecked(msgspec.Struct, tag=True, frozen=True):
    """The run ended, on these inputs."""

    run: TimedRun
    overrun: str = ""
    foreign_write: str = ""


class Counted(msgspec.Struct, tag=True, frozen=True):
    """Counters by Nsight Compute's names, for each launch in order; or none, and a sentence that says why."""

    launches: tuple[dict[str, float], ...]
    problem: str = ""
    foreign_write: str = ""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The GPU refused. `lost` says that its context is gone, and this process with it."""

    message: str
    lost: bool


GpuRequest = OpenGpu | Place | Load | Run | Wear | Time | Recheck | Count | ReleaseCounters
GpuReply = Opened | Ready | Loaded | Ran | Timed | Rechecked | Counted | Failed | Broken

GPU_REQUESTS: msgspec.msgpack.Decoder[GpuRequest] = msgspec.msgpack.Decoder(GpuRequest)
GPU_REPLIES: msgspec.msgpack.Decoder[GpuReply] = msgspec.msgpack.Decoder(GpuReply)
