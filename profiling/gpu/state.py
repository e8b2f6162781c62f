"""A GPU's clocks, temperature and power, read through NVML, and which changes of them disturb a timing.

They are read between runs and never within one, by the process that holds the GPU, because only that knows when nothing
runs. It opens NVML before it is confined.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from mctskernel.core.evaluation import ClockEvent, GpuState
from mctskernel.profiling.guardrails import NOISE

SLOWING = frozenset(
    {ClockEvent.SLOWDOWN, ClockEvent.THERMAL, ClockEvent.HARDWARE_THERMAL, ClockEvent.POWER_BRAKE}
)
"""Reasons outside of the kernel: times taken meanwhile mean nothing. A power cap isn't one of them: a kernel that draws
all the power that there is lowers its clock itself, in every run."""

CLOCK_SHARE = NOISE  # the fraction by which two clocks may differ: times then differ by no more than noise

_EVENTS = {
    0x001: ClockEvent.IDLE,
    0x002: ClockEvent.APPLICATION_CLOCKS,
    0x004: ClockEvent.POWER_CAP,
    0x008: ClockEvent.SLOWDOWN,
    0x010: ClockEvent.SYNC_BOOST,
    0x020: ClockEvent.THERMAL,
    0x040: ClockEvent.HARDWARE_THERMAL,
    0x080: ClockEvent.POWER_BRAKE,
    0x100: ClockEvent.DISPLAY_CLOCKS,
}
"""The bits of nvmlClocksEventReasons; part of its interface, so they don't change."""


class StateUnavailableError(Exception):
    """The GPU's state can't be read; the message is a sentence that says why."""


class Monitor(Protocol):
    """Reads a GPU's state; None where it is unknown."""

    def read(self) -> GpuState | None:
        """The state that is recorded with a time."""

    def glance(self) -> GpuState | None:
        """The part that shows whether runs are disturbed, which is faster to read."""


class Unmonitored:
    """The monitor where NVML is missing."""

    def read(self) -> None:
        """Return None."""

    def glance(self) -> None:
        """Return None."""


class GpuMonitor:
    """Reads the state of the GPU with this UUID, in hexadecimal, from NVML. Raises StateUnavailableError."""

    def __init__(self, gpu: str) -> None:
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise StateUnavailableError(f"{_UNKNOWN}: the package nvidia-ml-py is missing.") from error
        try:
            self._nvml.nvmlInit()
            self._device = self._find(str(uuid.UUID(gpu)))
        except self._nvml.NVMLError as error:
            raise StateUnavailableError(f"{_UNKNOWN}: NVML says '{error}'.") from error
        # NVML opens files at the first read: that must be before this process is confined.
        self.read()

    def read(self) -> GpuState:
        """The state that is recorded with a time."""
        nvml, device = self._nvml, self._device
        milliwatts = self._said(lambda: nvml.nvmlDeviceGetPowerUsage(device))
        return replace(
            self.glance(),
            celsius=self._said(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
            watts=None if milliwatts is None else milliwatts / 1000,
        )

    def glance(self) -> GpuState:
        """The part that shows whether runs are disturbed, which is faster to read."""
        nvml, device = self._nvml, self._device
        bits = self._said(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device)) or 0
        return GpuState(
            sm_mhz=self._said(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
            memory_mhz=self._said(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM)),
            events=tuple(event for bit, event in _EVENTS.items() if bits & bit),
        )

    def _find(self, name: str) -> Any:
        """A whole GPU or, of an instance of one, the GPU that it is on: clocks are the same for all of them."""
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{name}")
        except self._nvml.NVMLError:
            instance = self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{name}")
            return self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)

    def _said(self, ask: Callable[[], int]) -> int | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def disturbance(before: GpuState | None, now: GpuState | None) -> str:
    """Why runs between these two states don't count, as the end of a sentence; empty if they do or none is known."""
    if before is None or now is None:
        return ""
    if slowing := [str(event) for event in (*before.events, *now.events) if event in SLOWING]:
        return f"the GPU was being slowed down ({', '.join(dict.fromkeys(slowing))})"
    if ClockEvent.POWER_CAP in now.events or are_alike(before, now):
        return ""
    return f"the GPU's clocks went from {_clocks(before)} to {_clocks(now)}"


def is_slowed(state: GpuState | None) -> bool:
    """Whether the GPU is slowed down for a reason outside of the kernel."""
    return state is not None and not SLOWING.isdisjoint(state.events)


def are_alike(first: GpuState | None, second: GpuState | None) -> bool:
    """Whether the clocks of two states differ by no more than noise; unknown ones are taken to."""
    if first is None or second is None:
        return True
    clocks = ((first.sm_mhz, second.sm_mhz), (first.memory_mhz, second.memory_mhz))
    return all(abs(one - other) <= CLOCK_SHARE * max(one, other) for one, other in clocks if one and other)


def _clocks(state: GpuState) -> str:
    return f"{state.sm_mhz} MHz (memory {state.memory_mhz} MHz)"


_UNKNOWN = "Clocks, temperature and power of the GPU aren't recorded"
