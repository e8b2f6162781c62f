"""Which of a machine's GPUs a run uses: the requested ones, as far as they are of one kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mctskernel.core.device import DeviceError
from mctskernel.profiling.gpu.cuda_driver import VisibleGpu, visible_gpus

MEBIBYTE = 1 << 20
INDEX_DIGITS = 3  # a longer number is a prefix of a UUID


@dataclass(frozen=True)
class Choice:
    """GPUs of one kind, and warnings about those that were left out."""

    gpus: tuple[VisibleGpu, ...]
    notes: tuple[str, ...] = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        """Their UUIDs."""
        return tuple(gpu.uuid for gpu in self.gpus)


def chosen_gpus(wanted: Sequence[str]) -> Choice:
    """`choose_gpus` of the GPUs that the driver shows. Raises DeviceError."""
    return choose_gpus(wanted, visible_gpus())


def choose_gpus(wanted: Sequence[str], visible: Sequence[VisibleGpu]) -> Choice:
    """The GPUs that `wanted` names by index or prefix of a UUID, in that order; all visible ones without names.

    Those of another kind than the first are left out: times of two kinds are never compared. Raises DeviceError for a
    name that fits no GPU, or several.
    """
    if not visible:
        raise DeviceError("The NVIDIA driver finds no GPU that it can use.")
    named = tuple(dict.fromkeys(_named(word, visible) for word in wanted)) or tuple(visible)
    first = named[0]
    others = [gpu for gpu in named if gpu.kind != first.kind]
    notes = tuple(
        f"GPU {gpu.index} is left out: it is {_kind(gpu)}, and GPU {first.index} is {_kind(first)}. Times of the two "
        "can't be compared."
        for gpu in others
    )
    return Choice(tuple(gpu for gpu in named if gpu not in others), notes)


def _named(word: str, visible: Sequence[VisibleGpu]) -> VisibleGpu:
    there = ", ".join(f"{gpu.index} ({gpu.uuid[:8]})" for gpu in visible)
    if word.isdecimal() and len(word) <= INDEX_DIGITS:
        found = [gpu for gpu in visible if gpu.index == int(word)]
    else:
        beginning = re.sub(r"(?<=[0-9a-f])-", "", word.lower().removeprefix("gpu-").removeprefix("mig-"))
        found = [gpu for gpu in visible if beginning.isalnum() and gpu.uuid.startswith(beginning)]
    if len(found) != 1:
        what = "no GPU" if not found else f"{len(found)} GPUs"
        raise DeviceError(f"'{word}' names {what} of this machine: there are {there}.")
    return found[0]


def _kind(gpu: VisibleGpu) -> str:
    return f"{gpu.name} ({gpu.architecture}, {gpu.memory_bytes // MEBIBYTE} MiB)"
