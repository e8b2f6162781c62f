"""Which of a machine's GPUs are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.profiling.gpu.choice import choose_gpus
from mctskernel.profiling.gpu.cuda_driver import VisibleGpu

A, B = "a0" * 16, "b0" * 16


def gpu(index: int, name: str = "NVIDIA H200", memory: int = 141 << 30) -> VisibleGpu:
    return VisibleGpu(index, name, f"{index}{'ab' * 16}"[:32], "sm_90", memory)


MACHINE = (gpu(0), gpu(1), gpu(2, "NVIDIA A100"), gpu(3), gpu(4, memory=70 << 30))


def test_without_a_word_all_gpus_of_the_first_ones_kind_are_used() -> None:
    choice = choose_gpus((), MACHINE)
    assert [each.index for each in choice.gpus] == [0, 1, 3]
    assert [note.split(" is left out")[0] for note in choice.notes] == ["GPU 2", "GPU 4"]
    assert "NVIDIA A100" in choice.notes[0]


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        (("3", "1"), [3, 1]),
        (("2",), [2]),
        (("1aba", "1"), [1]),
        (("GPU-0abababa-baba",), [0]),
        (("0", "2", "1"), [0, 1]),
    ],
)
def test_words_name_gpus(words: tuple[str, ...], indices: list[int]) -> None:
    assert [each.index for each in choose_gpus(words, MACHINE).gpus] == indices


@pytest.mark.parametrize(
    ("word", "sentence"),
    [("7", "names no GPU"), ("GPU-", "names no GPU"), ("-1", "names no GPU"), ("cafe", "names no GPU")],
)
def test_words_that_name_none_are_refused(word: str, sentence: str) -> None:
    with pytest.raises(DeviceError, match=sentence):
        choose_gpus((word,), MACHINE)
    twins = (gpu(0), replace(gpu(1), uuid=gpu(0).uuid[:-1] + "f"))
    with pytest.raises(DeviceError, match="names 2 GPUs"):
        choose_gpus(("0ab",), twins)
