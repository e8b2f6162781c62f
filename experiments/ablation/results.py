"""What a sweep came to, in one document: everything that tables and plots are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.experiments.ablation.names import AblationError
from mctskernel.experiments.records.provenance import Provenance

SCHEMA = "mctskernel.ablation"
SCHEMA_VERSION = 1

SHARE = "share of the optimum"
LOG_SPEEDUP = "log of the speed-up"

DIGITS = 6
"""Of a figure in a document: searches that find the same agree in more."""


class Gate(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the answer of a run fared at shapes and seeds that its search never saw.

    `passed` is False where the starting kernel, or nothing, is the answer; `refused` counts faster kernels that failed.
    """

    passed: bool
    refused: int = 0
    speedup: float | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One search by an arm, of a subject, with a seed.

    `improvements` are pairs of an evaluation's number, from 1, and the figure from then on: the share of the optimum, 0
    before the first success, or the logarithm of the speed-up over the starting kernel. `evaluations` were made, of
    which `failures` by outcome. `seconds` passed, or, of a recorded space, were spent by a core; `device_seconds` are
    those of the evaluations, as they were recorded or took. `predictions` were made of kernels. `problem` says why
    nothing could be searched. `run` is the folder of the run, relative to the sweep's.
    """

    arm: str
    subject: str
    seed: int
    evaluations: int
    improvements: tuple[tuple[int, float], ...] = ()
    failures: dict[str, int] = {}
    seconds: float = 0.0
    device_seconds: float = 0.0
    predictions: int = 0
    dollars: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    gate: Gate | None = None
    problem: str = ""
    run: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What no two trials of a sweep share."""
        return self.arm, self.subject, self.seed

    def after(self, evaluations: int) -> float:
        """The figure after so many evaluations."""
        return max((figure for number, figure in self.improvements if number <= evaluations), default=0.0)


class ArmAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """An arm, and what it sets beside what all share."""

    name: str
    settings: str = ""


class SubjectAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was searched: its name, a digest of what is recorded there or of the task's files, and its size."""

    name: str
    digest: str
    configurations: int = 0


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep. `figure` says what the figures of its trials are, `source` where their times come from.

    `deterministic` is True where the same sweep must find the same again. `planned` trials are asked for; of a sweep
    that was cut off there are fewer.
    """

    provenance: Provenance
    title: str
    question: str
    against: str
    figure: str
    source: str
    deterministic: bool
    planned: int
    checkpoints: tuple[int, ...]
    arms: tuple[ArmAccount, ...]
    subjects: tuple[SubjectAccount, ...]
    trials: tuple[Trial, ...]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION


def read_results(path: Path) -> Results:
    """The results of a sweep's folder or of a file. Raises AblationError."""
    file = path / "results.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
        found = msgspec.json.decode(data, type=_Versioned)
        if found.schema != SCHEMA or found.schema_version != SCHEMA_VERSION:
            raise AblationError(
                f"{file} is {found.schema or 'of no schema'}, version {found.schema_version}; results of an ablation "
                f"are {SCHEMA}, version {SCHEMA_VERSION}."
            )
        return msgspec.json.decode(data, type=Results)
    except FileNotFoundError as error:
        raise AblationError(f"{file} isn't there: `mctskernel ablate` makes it.") from error
    except (OSError, *UNDECODABLE) as error:
        raise AblationError(f"{file} is not what an ablation found: {excerpt(error)}.") from error


def encode_results(results: Results) -> bytes:
    """The document, a line for each trial."""
    fields: Mapping[str, object] = msgspec.structs.asdict(results)
    lines = []
    for name, value in fields.items():
        if name == "trials":
            trials = b",\n  ".join(map(msgspec.json.encode, results.trials))
            lines.append(b' "trials": [\n  ' + trials + b"\n ]")
        else:
            lines.append(b" " + msgspec.json.encode(name) + b": " + msgspec.json.encode(value))
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def rounded(pairs: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Improvements as a document has them."""
    return tuple((number, round(figure, DIGITS)) for number, figure in pairs)


def counted(outcomes: Iterable[str]) -> dict[str, int]:
    """How many of each, the most frequent first."""
    return dict(Counter(outcomes).most_common())


class _Versioned(msgspec.Struct):
    schema: str = ""
    schema_version: int = 0
