"""Judging whole PyTorch modules from files: a reference in KernelBench's form, and candidates that replace it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mctskernel.core.task import TaskError
from mctskernel.profiling.pytorch.referee import ModuleVerdict, Terms, referee


def judge_modules(
    reference: Path, candidates: Sequence[Path], terms: Terms | None = None
) -> Iterator[tuple[Path, ModuleVerdict]]:
    """The verdict on each candidate file, in order, as soon as it is known.

    The reference has a class `Model`, `get_inputs()` and `get_init_inputs()`, a candidate a class `ModelNew`. Raises
    TaskError for a reference that can't be used or a file that can't be read, and DeviceError for a machine that lacks
    something.
    """
    sources = {path: _text(path) for path in candidates}
    with referee(_text(reference), terms) as judge:
        for path, source in sources.items():
            yield path, judge.judge(source)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} can't be read: {error}") from error
