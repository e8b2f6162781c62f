"""Nsight Compute's command line: its own output is understood, and a machine that can't is a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.profiling.ncu import explanation, find_ncu, parse_findings, read_findings, write_report
from tests.conftest import WriteTask

# From `ncu --import FILE --page details --csv` (2025.3.1), on two kernels and shortened.
DETAILS = """\
==WARNING== something about the file
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description",\
"Estimated Speedup Type","Estimated Speedup"
"0","590","python3.12","127.0.0.1","transpose","1","7","(32, 32, 1)","(256, 128, 1)","0","9.0",\
"GPU Speed Of Light Throughput","Elapsed Cycles","cycle","1,162,615",
"0","590","python3.12","127.0.0.1","transpose","1","7","(32, 32, 1)","(256, 128, 1)","0","9.0","SpeedOfLight",\
"","","","SOLBottleneck","INF","This workload is utilizing greater than 80.0% of the available compute or memory.","",""
"0","590","python3.12","127.0.0.1","transpose","1","7","(32, 32, 1)","(256, 128, 1)","0","9.0",\
"ComputeWorkloadAnalysis","","","","HighPipeUtilization","OPT","All compute pipelines are under-used.","local","97.95"
"0","590","python3.12","127.0.0.1","transpose","1","7","(32, 32, 1)","(256, 128, 1)","0","9.0","SourceCounters",\
"","","","UncoalescedGlobalAccess","OPT","This kernel has uncoalesced global accesses resulting in a total of 29360128
excessive sectors (78% of the total 37748736 sectors).","global","77.5"
"1","590","python3.12","127.0.0.1","conflicts","1","7","(32, 32, 1)","(256, 128, 1)","0","9.0",\
"MemoryWorkloadAnalysis_Tables","","","","SharedMemoryConflicts","OPT","A 32.0 - way bank conflict.","global","96.42"
"""

FORBIDDEN = """\
==PROF== Connected to process 12 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see https://developer.nvidia.com
"""


def test_findings_are_read_with_their_gains_the_largest_first() -> None:
    found = parse_findings(DETAILS)
    assert [(each.kernel, each.rule) for each in found] == [
        ("conflicts", "SharedMemoryConflicts"),
        ("transpose", "UncoalescedGlobalAccess"),
        ("transpose", "SOLBottleneck"),
        ("transpose", "HighPipeUtilization"),
    ]
    assert found[1].speedup == pytest.approx(0.775)
    assert found[1].sentence.endswith("29360128 excessive sectors (78% of the total 37748736 sectors).")
    assert found[3].local
    assert found[2].speedup == 0.0


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (FORBIDDEN, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("mctskernel: There is no NVIDIA driver here.\n==ERROR== it ended\n", "no NVIDIA driver here."),
        ("==PROF== Connected\n==ERROR== Failed to load.\n", "ncu made no report: Failed to load."),
        ("", "ncu made no report: it printed nothing."),
    ],
)
def test_why_there_is_no_report(output: str, sentence: str) -> None:
    assert sentence in explanation(output.splitlines())


def test_no_ncu_on_the_path_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"ncu is not on the PATH: install NVIDIA Nsight Compute.*\.$"):
        find_ncu()


@pytest.mark.gpu
@pytest.mark.parametrize("freedom", ["confined", "free"])
def test_a_kernel_of_a_task_is_profiled(write_task: WriteTask, tmp_path: Path, freedom: str) -> None:
    folder = write_task()
    report = tmp_path / "7.ncu-rep"
    program = [sys.executable, "-m", "mctskernel.profiling.replay", str(folder)]
    write_report(report, [*program, str(folder / "kernel.cu"), "0", freedom])
    findings = read_findings(report)
    assert {each.kernel for each in findings} == {"twice"}
    assert any(each.speedup for each in findings)
