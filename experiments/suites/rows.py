"""What the suite knows so far: one JSON object a line, appended as soon as it is known, so that nothing is lost.

Of several rows about the same thing the last one holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mctskernel.core.expression import evaluate
from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.experiments.records.json_lines import read_lines
from mctskernel.experiments.suites.search_cost import SearchCost
from mctskernel.experiments.summarise_runs import Summary


class _Row(msgspec.Struct, frozen=True, tag_field="row", kw_only=True):
    """`problem` says in a sentence why numbers are missing."""

    problem: str = ""


class _TaskRow(_Row, frozen=True, kw_only=True):
    """`compulsory_bytes` and `flops` are those of the first search shape.

    `tensor_cores` says whether they can do the task's arithmetic: its outputs are 16-bit floats.
    """

    task: str
    compulsory_bytes: int = 0
    flops: float = 0.0
    tensor_cores: bool = False

    def floor_seconds(self, ceilings: CeilingsRow) -> float:
        """What a copy of the compulsory bytes takes, or the arithmetic at the GPU's rate where that is more."""
        return max(self.compulsory_bytes / ceilings.copy_bytes_per_second, self._arithmetic_seconds(ceilings))

    def is_memory_bound(self, ceilings: CeilingsRow) -> bool:
        """Whether the compulsory bytes take at least as long as the arithmetic."""
        return self.floor_seconds(ceilings) > self._arithmetic_seconds(ceilings)

    def _arithmetic_seconds(self, ceilings: CeilingsRow) -> float:
        rate = ceilings.tensor_flops_per_second if self.tensor_cores else ceilings.fp32_flops_per_second
        return self.flops / rate if rate else 0.0


class SearchRow(_TaskRow, frozen=True, tag="search", kw_only=True):
    """A search of one task in one language."""

    language: Language
    device: str
    summary: Summary | None = None
    cost: SearchCost | None = None


class TorchRow(_Row, frozen=True, tag="torch"):
    """The same task by PyTorch: medians of `triton.testing.do_bench`, in seconds; None where it doesn't run."""

    task: str
    eager_seconds: float | None = None
    compiled_seconds: float | None = None
    versions: dict[str, str] = {}


class TimesRow(_TaskRow, frozen=True, tag="times", kw_only=True):
    """A task's kernels and PyTorch, timed in turns in one process.

    `seconds` are samples by the label of a shape and by contender: "cuda start", "cuda best" and so on, "eager", and
    the modes of torch.compile. `differences` say how far each kernel's output is from eager PyTorch's, as the norm of
    the difference over that of the output, at the worst shape.
    """

    seconds: dict[str, dict[str, tuple[float, ...]]] = {}
    differences: dict[str, float] = {}
    versions: dict[str, str] = {}


class CeilingsRow(_Row, frozen=True, tag="ceilings"):
    """What the GPU can do at most: bytes copied (read and written) and operations in a second."""

    copy_bytes_per_second: float = 0.0
    fp32_flops_per_second: float = 0.0
    tensor_flops_per_second: float = 0.0


Row = SearchRow | TorchRow | TimesRow | CeilingsRow


def arithmetic(task: Task) -> float:
    """Operations of a task at its first search shape, 0 where it doesn't say."""
    return float(evaluate(task.flops, task.search_shapes[0])) if task.flops is not None else 0.0


def uses_tensor_cores(task: Task) -> bool:
    """Whether tensor cores can do a task's arithmetic: its outputs are 16-bit floats."""
    return all(tensor.dtype in ("float16", "bfloat16") for tensor in task.outputs)


def read_rows(file: Path) -> list[Row]:
    """The rows of a file, none if there is no file; a torn last line is left out. Raises LineError."""
    return read_lines(file, msgspec.json.Decoder[Row](Row))


def latest(
    rows: Sequence[Row],
) -> tuple[dict[tuple[str, Language, str], SearchRow], dict[str, TorchRow], CeilingsRow | None]:
    """The rows that hold: searches by task, language and device; PyTorch's by task; the ceilings."""
    searches = {(row.task, row.language, row.device): row for row in rows if isinstance(row, SearchRow)}
    torch = {row.task: row for row in rows if isinstance(row, TorchRow)}
    ceilings = [row for row in rows if isinstance(row, CeilingsRow)]
    return searches, torch, ceilings[-1] if ceilings else None
