"""Occupancy against values that NVIDIA's calculator gives, and the files that describe GPUs."""

from pathlib import Path

import pytest

from mctskernel.profiling.architecture import (
    Architecture,
    ArchitectureError,
    architecture_of,
    known_architectures,
    load_architecture,
    occupancy,
    parse_architecture,
)

H100, ADA = load_architecture("H100"), load_architecture("RTX4090")
TEXT = (Path(__file__).parents[2] / "profiling" / "architectures" / "h100.toml").read_text()


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        (H100, 256, 32, 0, 8, "threads"),
        (H100, 1024, 65, 0, 0, "registers"),
        (H100, 256, 128, 16384, 2, "registers"),
        (H100, 128, 32, 48 * 1024, 4, "shared memory"),
        (H100, 128, 32, 232449, 0, "shared memory"),
        (H100, 33, 32, 0, 32, "threads"),
        (ADA, 128, 32, 33 << 10, 2, "shared memory"),
    ],
)
def test_blocks_per_sm(  # noqa: PLR0917 - pytest passes them by name
    gpu: Architecture, threads: int, registers: int, shared_bytes: int, blocks: int, limited_by: str
) -> None:
    found = occupancy(gpu, threads, registers, shared_bytes)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32)


DATA_SHEETS = {
    # Dense Tflop/s in fp32, fp64 and on tensor cores in 16 bits with 32-bit sums; peak DRAM in TB/s.
    "A100": (19.5, 9.7, 312, 2.039),
    "H100": (67, 34, 989, 3.35),
    "H200": (67, 34, 989, 4.8),
    "RTX4090": (82.6, 1.29, 165.2, 1.008),
    "B200": (75, 37, 2250, 8.0),
}


@pytest.mark.parametrize("name", known_architectures())
def test_rates_are_those_of_the_data_sheet(name: str) -> None:
    gpu = load_architecture(name)
    fp32, fp64, tensor, dram = DATA_SHEETS[name]
    cycles = 2e-12 * gpu.chip.sms * gpu.chip.clock_hz
    assert gpu.throughput.fma * cycles == pytest.approx(fp32, rel=0.05)
    assert gpu.throughput.fp64 * cycles == pytest.approx(fp64, rel=0.05)
    # Tensor cores are promised at a lower clock than they sometimes get.
    assert gpu.throughput.tensor_fma * cycles == pytest.approx(tensor, rel=0.1)
    assert 0.85 * dram < gpu.memory.dram_bytes_per_second / 1e12 < dram


def test_an_unknown_gpu_is_told_the_nearest_one() -> None:
    with pytest.raises(ArchitectureError, match=r"GPU 'RTX490'. Did you mean 'RTX4090'\?"):
        load_architecture("RTX490")
    with pytest.raises(ArchitectureError):
        load_architecture("../h100")


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        ("sm_90", "NVIDIA H200", "NVIDIA H200"),
        ("sm_90", "", "NVIDIA H100 80GB HBM3"),
        ("sm_80", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
        ("sm_100", "NVIDIA B200", "NVIDIA B200"),
        # A name never outweighs what the chip runs.
        ("sm_80", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"),
        ("sm_120", "NVIDIA GeForce RTX 5090", None),
    ],
)
def test_a_real_gpu_is_found_by_its_name_and_else_by_its_code(
    code: str, name: str, expected: str | None
) -> None:
    found = architecture_of(code, name)
    assert (found and found.name) == expected


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("sms = 132", "sms = 0", "chip.sms"),
        ("clock_hz = 1.98e9", "clock_hz = nan", "chip.clock_hz"),
        ("sms = 132", f"sms = {'1' * 5000}", "digits"),
        ("sms = 132", "sms = 132\nsmss = 4", "smss"),
        ('name = "NVIDIA H100 80GB HBM3"', 'name = "\\u001b[31m"', "`name`"),
        ('"sm_90"', '"sm_90 --evil"', "architecture"),
        ("[chip]", f"deep = {'[' * 5000}{']' * 5000}\n[chip]", "nested"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(ArchitectureError, match=complaint) as caught:
        parse_architecture(TEXT.replace(old, new, 1), "mine.toml")
    message = str(caught.value)
    assert message.startswith("The file 'mine.toml' describes no GPU: ")
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 300
