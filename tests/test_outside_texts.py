"""Readers of outside texts return something sound or refuse in a sentence: no other exception, and no waiting."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mctskernel.core.edit import Block, Category, Edit, Patch
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.edits.llm.replies import read_reply
from mctskernel.edits.patch import PatchError, apply
from mctskernel.external.messages import ReplyError, read_replies
from mctskernel.profiling.emulator import UnsupportedPtxError, parse_ptx
from mctskernel.run import RunFolder, read_manifest
from mctskernel.tree.events import Refused, Resumed, encode
from mctskernel.tree.journal import SCHEMA, SCHEMA_VERSION, Journal, read_events, read_tree
from tests.conftest import KERNEL, REFERENCE, TASK_TOML

Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Reader:
    """A reader, an input that it takes, and what it refuses other inputs with."""

    name: str
    read: Read
    example: bytes
    refusals: tuple[type[Exception], ...] = ()


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def journal(data: bytes, folder: Path) -> None:
    path = folder / "journal.jsonl"
    path.write_bytes(data)
    events = list(read_events(path))
    read_tree(path)
    with Journal(path, durable=False):
        pass
    assert list(read_events(path)) == events


def task_file(data: bytes, folder: Path) -> None:
    for name, content in (
        ("task.toml", data),
        ("reference.py", REFERENCE.encode()),
        ("kernel.cu", KERNEL.encode()),
    ):
        (folder / name).write_bytes(content)
    task = load_task(folder)
    for shape in task.shapes:
        assert all(extent >= 1 for tensor in task.inputs for extent in tensor.extents(shape))


def manifest(data: bytes, folder: Path) -> None:
    (folder / "run.json").write_bytes(data)
    read_manifest(RunFolder(folder))


def patch(data: bytes, folder: Path) -> None:
    search, _, replacement = text(data).partition("=======\n")
    edit = Edit(Category.TUNING, "an edit", Patch((Block(search, replacement),)))
    assert apply(Kernel(KERNEL), edit).identity != Kernel(KERNEL).identity


def reply(data: bytes, folder: Path) -> None:
    reading = read_reply(data.decode("utf-8", "surrogateescape"), Kernel(KERNEL), 4)
    assert reading.edits or reading.unfit or reading.dropped
    for edit in reading.edits:
        apply(Kernel(KERNEL), edit).source.encode()


PTX = b""".version 8.5
.target sm_90
.visible .entry f(.param .u64 x) {
.reg .b64 %rd<3>;
ld.param.u64 %rd1, [x];
st.global.u32 [%rd1+4], 7;
ret;
}
"""
TRITON_PLAN = b'"""\n[[launch]]\nkernel = "f"\ngrid = ["ceil_div(n, 4)"]\nargs = []\n"""\n'
EDIT = {
    "title": "Larger blocks",
    "category": "tuning",
    "patch": [{"search": "BLOCK 64", "replace": "BLOCK 128"}],
}

JOURNAL_HEADER = b'{"schema":"%s","version":%d}\n' % (SCHEMA.encode(), SCHEMA_VERSION)

READERS = (
    Reader(
        "journal",
        journal,
        JOURNAL_HEADER
        + encode(Resumed()) + b"\n" + encode(Refused(node=0, edit=0, reason="x")) + b"\n",
        (RunError,),
    ),
    Reader("task file", task_file, TASK_TOML.encode(), (TaskError,)),
    Reader("run.json", manifest, b'{"schema_version": 2, "created": "2026-01-01", "version": "1"}', (RunError,)),
    Reader("launch plan", lambda data, _: plan_of(Kernel(text(data))), KERNEL.encode(), (LaunchPlanError,)),
    Reader(
        "Triton launch plan",
        lambda data, _: plan_of(Kernel(text(data), Language.TRITON)),
        TRITON_PLAN + b"A = 1 + 2\n",
        (LaunchPlanError,),
    ),
    Reader("patch", patch, b"#define BLOCK 64\n=======\n#define BLOCK 128\n", (PatchError,)),
    Reader("model's reply", reply, b"Here: ```json\n" + json.dumps({"edits": [EDIT]}).encode() + b"\n```"),
    Reader(
        "outside proposer's reply",
        lambda data, _: read_replies(data.decode("utf-8", "surrogateescape")),
        json.dumps({"node": 0, "edits": [EDIT], "dollars": 0.5}).encode(),
        (ReplyError,),
    ),
    Reader("PTX", lambda data, _: parse_ptx(text(data)), PTX, (UnsupportedPtxError,)),
)  # fmt: skip
BY_NAME = {reader.name: reader for reader in READERS}

TOKENS = (
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", "\u0430\u202e\u2028\u00b2".encode(), b"\\ud800", b"9" * 5000, b"1e400", b"-1",
    b"[" * 20_000, b'{"a":' * 5000, b"(" * 5000, b"-" * 900, b"a." * 30_000, b"/*" * 20_000, b"\n" * 20_000,
    b'"', b"'", b'"""', b"```", b"=", b"}", b"]", b"\r", b"../../../../etc/passwd", b"/dev/zero",
)  # fmt: skip


def mutated(example: bytes) -> st.SearchStrategy[bytes]:
    """The example, cut, overwritten and interspersed with what readers have tripped over."""
    place = st.integers(0, len(example))
    change = st.tuples(place, place, st.sampled_from(TOKENS) | st.binary(max_size=8) | st.just(example))

    def made(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = example
        for start, end, token in changes:
            data = data[:start] + token + data[max(start, end) if end % 3 == 0 else start :]
        return data

    return st.lists(change, min_size=1, max_size=4).map(made)


def takes_or_refuses(reader: Reader, data: bytes, folder: Path) -> None:
    try:
        reader.read(data, folder)
    except reader.refusals as refusal:
        assert str(refusal).strip()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
@settings(suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_a_reader_takes_or_refuses_anything(
    reader: Reader, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    takes_or_refuses(reader, data.draw(mutated(reader.example)), tmp_path_factory.mktemp("outside"))


DEEP = b"[" * 20_000
HEADER = TASK_TOML.encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("run.json", b'{"schema_version": "\xff"}'),
        ("run.json", b'{"x": ' + DEEP),
        ("outside proposer's reply", b'{"x": ' + DEEP),
        ("outside proposer's reply", b'{"version": 1, "node": 3, "' + b"a" * 30_000 + b'": 1}'),
        ("journal", JOURNAL_HEADER + b'{"event": "resumed", "x": ' + DEEP + b"\n"),
        ("task file", b"x = " + DEEP),
        ("task file", HEADER + b"[scalars]\nx = " + b"9" * 5000),
        ("task file", b"a." * 30_000 + b"a = 1"),
        ("task file", b'kernel = "../../../../etc/passwd"\n' + HEADER),
        ("task file", b'kernel = "/dev/zero"\n' + HEADER),
        ("task file", b'kernel = "a\\u0000"\n' + HEADER),
        ("task file", HEADER.replace(b'dtype = "float32"', b'dtype = ["float32"]', 1)),
        ("launch plan", b"/*\n" + b"a." * 8000 + b"a = 1\n*/\n"),
        ("Triton launch plan", TRITON_PLAN + b"A = " + b"1 + " * 3000 + b"1\n"),
        ("PTX", b".shared " * 8000),
        ("PTX", b"/*" * 30_000),
        ("PTX", b".visible .entry f() { ret;" + b"\n" * 30_000 + b"x }"),
        ("PTX", b".visible .entry f() { add.s64; ret; }"),
        ("PTX", ".global .u3\uff47 x;".encode()),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
def test_a_reader_takes_or_refuses_what_once_broke_it(name: str, data: bytes, tmp_path: Path) -> None:
    takes_or_refuses(BY_NAME[name], data, tmp_path)
