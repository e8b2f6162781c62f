"""An evaluation: an outcome with its evidence. Failure of a candidate is data, never an exception."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Outcome(enum.StrEnum):
    """How an evaluation ended."""

    OK = "ok"
    BUILD_ERROR = "build error"
    LAUNCH_ERROR = "launch error"
    WRONG_RESULT = "wrong result"
    RACE = "race"
    TIMEOUT = "timeout"
    CRASH = "crash"
    REJECTED = "rejected"
    UNVERIFIABLE = "can't be verified here"
    DUPLICATE = "duplicate"


REPAIRABLE = frozenset(
    {Outcome.BUILD_ERROR, Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT, Outcome.RACE, Outcome.CRASH}
)
"""Outcomes that a further edit may repair.

`UNVERIFIABLE` says nothing about the kernel: this device lacks what it uses. It counts neither for nor against its
edit.
"""


class Guard(enum.StrEnum):
    """The check that refused a kernel."""

    SOURCE_RULES = "source rules"
    COMPILER = "compiler"
    LAUNCH_LIMITS = "launch limits"
    EMULATOR = "emulator"
    FOREIGN_CALLS = "foreign calls"
    COMPARISON = "comparison with the reference"
    POISON = "poisoned outputs"
    PRECISION = "precision of a plain implementation"
    UNTOUCHED_INPUTS = "untouched inputs"
    REPETITION = "repetition"
    MEMORY_CHECKS = "memory checks"
    RACE_CHECKS = "race checks"
    GUARD_BYTES = "guard bytes"
    TIMED_OUTPUTS = "outputs of timed runs"
    GPU_TIME = "accounting of GPU time"
    ROOFLINE = "roofline"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    SEPARATE_PROCESS = "separate process"
    FINAL_VALIDATION = "final validation"


class Source(enum.StrEnum):
    """Where numbers come from; shown with every one of them."""

    MEASURED = "measured"
    MODELLED = "modelled"
    RECORDED = "recorded"


class Bottleneck(enum.StrEnum):
    """What can bind a kernel's time."""

    DRAM_BANDWIDTH = "DRAM bandwidth"
    L2_BANDWIDTH = "L2 bandwidth"
    L1_THROUGHPUT = "L1 throughput"
    UNCOALESCED_ACCESS = "uncoalesced access"
    GLOBAL_LATENCY = "global-memory latency"
    SHARED_THROUGHPUT = "shared-memory throughput"
    BANK_CONFLICTS = "shared-memory bank conflicts"
    BARRIERS = "barriers"
    INSTRUCTION_ISSUE = "instruction issue"
    FP32_PIPE = "FP32 pipe"
    INTEGER_PIPE = "integer pipe"
    SPECIAL_FUNCTIONS = "special functions"
    TENSOR_PIPE = "tensor pipe"
    LOW_OCCUPANCY = "low occupancy"
    TOO_FEW_BLOCKS = "too few blocks"
    TAIL = "tail"
    ATOMICS = "atomics"
    SPILLS = "register spills"
    DIVERGENCE = "divergence"
    LAUNCH_OVERHEAD = "launch overhead"


class ClockEvent(enum.StrEnum):
    """Why a GPU's clocks are below their highest, as its driver says: NVML's clocks event reasons."""

    IDLE = "idle"
    APPLICATION_CLOCKS = "application clocks setting"
    POWER_CAP = "software power cap"
    SLOWDOWN = "hardware slowdown"
    SYNC_BOOST = "sync boost"
    THERMAL = "software thermal slowdown"
    HARDWARE_THERMAL = "hardware thermal slowdown"
    POWER_BRAKE = "hardware power brake"
    DISPLAY_CLOCKS = "display clock setting"


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU's clocks in MHz, temperature in degrees Celsius and power in watts between runs; None if unknown."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    watts: float | None = None
    events: tuple[ClockEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditions:
    """A GPU's state before and after a time's runs; `dropped` runs were repeated because it had been disturbed."""

    before: GpuState
    after: GpuState
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one run of the whole launch plan at one shape, in seconds: median and its interval.

    `baseline_seconds` is the starting kernel's time measured interleaved with it, where the device does so, and
    `baseline_spread` how far its interval reaches, as a fraction; `conditions` are those of both, where the device
    tells them. Times of two kernels are compared by `mctskernel.profiling.guardrails`.
    """

    shape: str
    seconds: float
    low: float
    high: float
    samples: tuple[float, ...] = ()
    baseline_seconds: float | None = None
    conditions: Conditions | None = None
    baseline_spread: float | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler's report says of one kernel, sizes in bytes."""

    kernel: str
    registers: int
    shared_bytes: int
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """A verification: its largest error as a share of what is allowed, and the `guard` that refused it."""

    shape: str
    seed: int
    passed: bool
    error: float
    message: str = ""
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A bottleneck, the fraction of the kernel's time that it explains, and a plain sentence with numbers."""

    bottleneck: Bottleneck
    share: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What binds the kernel, the strongest cause first.

    `explanation` says in sentences with numbers which part of the GPU binds, which is next, and as far as a model
    knows it what the time would be if the first one were relieved.
    """

    causes: tuple[Cause, ...]
    explanation: str = ""

    @property
    def summary(self) -> str:
        return self.causes[0].sentence if self.causes else ""


@dataclass(frozen=True, slots=True)
class LaunchTerms:
    """The modelled seconds of one launch of a plan and of its parts, each as if nothing else held it up.

    The gap before a launch is part of its time; a plan's time is the sum over its launches. `imbalance` is how many
    times longer the busiest multiprocessor works than they do on average.
    """

    kernel: str
    seconds: float
    terms: dict[str, float]
    imbalance: float = 1.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An outcome with its evidence.

    `message` says in a sentence why the outcome isn't ok, and `guard` names the check that refused it or its time.
    `counters` carry Nsight Compute names and units (times in seconds); `terms` are a model's parts of the time, in
    seconds, and `launches` the same for each launch, both at the first search shape; `flags` are guardrail notes
    that refuse nothing; `quarantine` is the reason why the time is not trusted, or empty; `stage_seconds` is
    what each stage cost. `gpu` is the UUID of the GPU that took the times.
    """

    outcome: Outcome
    source: Source
    message: str = ""
    timings: tuple[Timing, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    resources: tuple[Resources, ...] = ()
    checks: tuple[Check, ...] = ()
    diagnosis: Diagnosis | None = None
    flags: tuple[str, ...] = ()
    quarantine: str = ""
    log: str = ""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    launches: tuple[LaunchTerms, ...] = ()
    guard: Guard | None = None
    gpu: str = ""

    @property
    def ok(self) -> bool:
        """Whether the kernel was built, verified and timed."""
        return self.outcome is Outcome.OK

    @property
    def cost_seconds(self) -> float:
        return sum(self.stage_seconds.values())


@dataclass(frozen=True, slots=True)
class Score:
    """A reward and its terms; `speedup` is the geometric mean over the search shapes, 0 where there is none."""

    reward: float
    speedup: float
    terms: dict[str, float] = field(default_factory=dict)
