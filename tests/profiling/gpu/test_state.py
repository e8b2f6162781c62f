"""The state of a GPU, as NVML tells it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mctskernel.core.evaluation import ClockEvent, GpuState
from mctskernel.profiling.gpu.state import GpuMonitor, disturbance

UUID = "0123456789abcdef0123456789abcdef"
NAME = "01234567-89ab-cdef-0123-456789abcdef"


class NVMLError(Exception):
    """What every function may raise."""


def fake_nvml(**functions: Any) -> SimpleNamespace:
    """NVML with one GPU, or with other functions than such a one has."""

    def by_uuid(uuid: str) -> str:
        if uuid != f"GPU-{NAME}":
            raise NVMLError("Not Found")
        return "device"

    found: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetClockInfo": lambda device, clock: {1: 1980, 2: 2619}[clock],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda device: 0x4 | 0x40,
        "nvmlDeviceGetTemperature": lambda device, sensor: 41,
        "nvmlDeviceGetPowerUsage": lambda device: 312_500,
    }
    return SimpleNamespace(**(found | functions))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an NVML in the place of this machine's."""
    return lambda nvml: monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_what_nvml_says_is_read_in_the_units_that_are_stored(use: Any) -> None:
    use(fake_nvml())
    events = (ClockEvent.POWER_CAP, ClockEvent.HARDWARE_THERMAL)
    monitor = GpuMonitor(UUID)
    assert monitor.read() == GpuState(1980, 2619, 41, 312.5, events)
    assert monitor.glance() == GpuState(1980, 2619, events=events)


BEFORE = GpuState(1980, 2619, 40, 300.0)


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (BEFORE, BEFORE, ""),
        (BEFORE, GpuState(1965, 2619, events=(ClockEvent.IDLE, ClockEvent.SYNC_BOOST)), ""),
        (BEFORE, GpuState(1500, 2619, events=(ClockEvent.POWER_CAP,)), ""),
        (BEFORE, GpuState(1980, 2619, events=(ClockEvent.POWER_BRAKE,)), "hardware power brake"),
        (BEFORE, GpuState(events=(ClockEvent.POWER_CAP, ClockEvent.THERMAL)), "(software thermal slowdown)"),
        (BEFORE, GpuState(1755, 2619), "from 1980 MHz (memory 2619 MHz) to 1755 MHz (memory 2619 MHz)"),
        (None, BEFORE, ""),
    ],
)
def test_what_disturbs_a_timing(before: GpuState | None, now: GpuState | None, sentence: str) -> None:
    found = disturbance(before, now)
    assert sentence in found
    assert bool(found) == bool(sentence)
