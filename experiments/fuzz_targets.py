"""Everything that reads what comes from outside, with what has to be true of whatever it takes.

A target's `read` takes an input's bytes and a folder of its own. It returns if the input is taken and sound, raises one
of the `refusals` if it is refused, and fails an assertion if what was taken isn't what it should be.
"""

from __future__ import annotations

import ast
import contextlib
import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mctskernel.asks import ReplyError, proposals_of, read_replies
from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.edit import Block, Category, Edit, Patch
from mctskernel.core.expression import MAX_MAGNITUDE, ExpressionError, evaluate, evaluate_int, names_in
from mctskernel.core.interpreted_reference import InterpretedReference
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import MAX_GRID, MAX_THREADS, LaunchPlanError, plan_of, resolve
from mctskernel.core.proposer import Exchange, Purpose
from mctskernel.core.reference_language import RefusedReferenceError
from mctskernel.core.space import SpaceError, configuration_kernel, values_of
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.cache import CachedModel
from mctskernel.edits.llm.completion import Unusable, read_completion
from mctskernel.edits.llm.generate import read_statement
from mctskernel.edits.llm.judge import read_bottleneck, read_verdicts
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.options import LLMOptions
from mctskernel.edits.llm.replies import MAX_SOURCE_BYTES, read_reply
from mctskernel.edits.llm.tolerant_json import read_json
from mctskernel.edits.patch import PatchError, applied, apply, as_patch
from mctskernel.edits.plan_text import with_plan
from mctskernel.experiments import fuzz_examples as examples
from mctskernel.memory import MemoryUnusableError, encode_snapshot, open_memory, read_snapshot
from mctskernel.profiling import ncu, sanitizer_output
from mctskernel.profiling.architecture import ArchitectureError, parse_architecture
from mctskernel.profiling.emulator import UnsupportedPtx, parse_ptx
from mctskernel.profiling.gpu.protocol import GPU_REPLIES
from mctskernel.profiling.machine_code.constant_banks import constant_banks
from mctskernel.profiling.machine_code.cubin import CubinError, resources, sections
from mctskernel.profiling.machine_code.decoder import UnknownWord, decode
from mctskernel.profiling.machine_code.disassembly import decoded
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError, parse
from mctskernel.profiling.processes.channel import Channel, ProtocolError
from mctskernel.profiling.processes.compile_process import COMPILE_REPLIES, COMPILE_REQUESTS
from mctskernel.profiling.processes.device_protocol import REPLIES as DEVICE_REPLIES
from mctskernel.profiling.spaces import read_space, write_space
from mctskernel.run import RunError, RunFolder, read_manifest
from mctskernel.tree.events import encode
from mctskernel.tree.journal import Journal, JournalError, read_events, read_tree

Read = Callable[[bytes, Path], None]

LARGEST_REPLY = 400_000
"""Bytes: what is read of a server by default (`LLMOptions.max_reply_bytes`)."""


@dataclass(frozen=True)
class Target:
    """A reader: what its inputs are mutated from and made of, and bytes that an input has at the most."""

    name: str
    read: Read
    examples: Callable[[], tuple[bytes, ...]]
    refusals: tuple[type[Exception], ...] = ()
    words: tuple[bytes, ...] = ()
    most: int = 64 << 10


def _text(data: bytes) -> str:
    """As a file is read, whatever is in it."""
    return data.decode("utf-8", "replace")


def _any_text(data: bytes) -> str:
    """With halves of surrogate pairs, as JSON may hold."""
    return data.decode("utf-8", "surrogateescape")


_NAMES: Mapping[str, float] = {"n": 4096, "rows": 7, "BLOCK": 256, "eps": 1e-5}
_TENSORS = frozenset(
    {"x", "out", "logits", "counts", "weight", "bias", "q", "k", "v", "a", "b", "offsets", "labels"}
)
_DIMENSIONS = (
    "cols",
    "seq",
    "dim",
    "heads",
    "height",
    "width",
    "M",
    "N",
    "K",
    "channels",
    "filters",
    "images",
)


def _expression(data: bytes, _: Path) -> None:
    text = _any_text(data)
    assert all(name.isidentifier() for name in names_in(text))
    value = evaluate(text, _NAMES)
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    assert abs(value) < MAX_MAGNITUDE, value
    with contextlib.suppress(ExpressionError):
        assert isinstance(evaluate_int(text, _NAMES), int)


def _launch_plan(language: Language, data: bytes, _: Path) -> None:
    kernel = Kernel(_text(data), language)
    assert len(kernel.identity) == 64
    assert all(abs(value) < MAX_MAGNITUDE for value in kernel.macros.values())
    plan = plan_of(kernel)
    rewritten = with_plan(kernel, plan)
    assert plan_of(rewritten) == plan
    resolved = resolve(plan, {**dict.fromkeys(_DIMENSIONS, 96), **kernel.macros, **_NAMES}, _TENSORS)
    for launch in resolved.launches:
        assert 1 <= launch.threads <= MAX_THREADS
        assert all(1 <= extent <= most for extent, most in zip(launch.grid, MAX_GRID, strict=True))
        assert all(isinstance(each, int) for each in (*launch.grid, *launch.block, launch.shared_bytes))
    assert all(scratch.nbytes > 0 for scratch in resolved.scratch)


def _task_file(data: bytes, folder: Path) -> None:
    (folder / "task.toml").write_bytes(data)
    (folder / "kernel.cu").write_text(examples.KERNELS[Language.CUDA][0])
    (folder / "reference.py").write_bytes(b"def reference(x):\n    return x\n")
    task = load_task(folder)
    assert task.search_shapes
    for shape in task.shapes:
        for tensor in (*task.inputs, *task.outputs):
            assert tensor.dtype in DTYPE_BYTES
            assert all(isinstance(extent, int) and extent >= 1 for extent in tensor.extents(shape))
        assert all(math.isfinite(limit) for tensor in task.inputs for limit in tensor.limits(shape))


def _unanchored_reference(data: bytes, _: Path) -> None:
    reference = InterpretedReference(_text(data))
    values = {"x": np.ones((3, 4), np.float32), "y": np.ones((3, 4), np.float32), "n": 3}
    # Of what only numpy can say, its exceptions are: whoever calls a reference makes sentences of them.
    with np.errstate(all="ignore"), contextlib.suppress(ArithmeticError, IndexError, TypeError, ValueError):
        reference(**{name: values.get(name, values["x"]) for name in reference.__signature__.parameters})


def _patch(data: bytes, _: Path) -> None:
    """SEARCH and REPLACE texts, and the source before them, with a NUL byte between them."""
    first, _, rest = _text(data).partition("\0")
    parts = rest.split("\0")
    kernel = Kernel(first.replace("\x01", "\n"))
    blocks = tuple(Block(*pair) for pair in zip(parts[::2], parts[1::2], strict=False))
    edit = Edit(Category.TUNING, "fuzzed", Patch(blocks))
    after = apply(kernel, edit)
    assert after.identity != kernel.identity
    before = kernel.source.replace("\r\n", "\n")
    if before.strip() and len(before) < 4000:
        again = as_patch(before, after.source.replace("\r\n", "\n"))
        assert apply(kernel, Edit(Category.TUNING, "again", again)).source == after.source


def _patches() -> tuple[bytes, ...]:
    source = examples.KERNELS[Language.CUDA][0]
    lines = source.splitlines(keepends=True)
    near = "".join(lines[12:15]).replace(" ", "  ")
    return (
        "\0".join([source, lines[10], lines[10] + "// more\n", "".join(lines[12:14]), "int i;\n"]).encode(),
        "\0".join([source, near, "x\n", lines[3].replace("a", "b"), ""]).encode(),
        "\0".join([lines[5] * 400, lines[5] * 30, "x"]).encode(),
    )


def _journal(data: bytes, folder: Path) -> None:
    path = folder / "journal.jsonl"
    path.write_bytes(data)
    events = list(read_events(path))
    assert all(encode(event) for event in events)
    tree = read_tree(path)
    with Journal(path, durable=False):
        pass
    assert list(read_events(path)) == events
    assert len(read_tree(path).nodes) == len(tree.nodes)


def _space(data: bytes, folder: Path) -> None:
    path = folder / "odd.json"
    path.write_bytes(data)
    space = read_space(path)
    assert space.entries
    for entry in space.entries[:50]:
        assert (entry.seconds is not None) == (entry.outcome == "ok")
        kernel = configuration_kernel(space, entry.values)
        assert values_of(space, kernel) == entry.values
        msgspec.json.decode(msgspec.json.encode(list(kernel.settings.values())), type=list[float | str])
    written = folder / f"{space.name}.again.json"
    write_space(space, written)
    assert read_space(written).entries == space.entries


def _configuration(data: bytes, _: Path) -> None:
    kernel = Kernel(_text(data), Language.CONFIGURATION)
    assert len(kernel.identity) == 64
    assert all(isinstance(value, int | float | str) for value in kernel.settings.values())
    values_of(examples.space(), kernel)


class _Silent:
    """A model that has nothing to say, so that what is said was kept."""

    def complete(self, call: Call) -> Exchange:
        return Exchange(call.purpose, "", "", reply="", problem="silent")

    def close(self) -> None:
        pass

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _cached_reply(data: bytes, folder: Path) -> None:
    with CachedModel(_Silent(), LLMOptions(model="m"), folder) as model:  # type: ignore[arg-type]
        call = Call(Purpose.PROPOSE, (Message("user", "hello"),))
        file = model._file(call)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        exchange = model.complete(call)
    assert isinstance(exchange.reply, str)
    assert exchange.recorded or exchange.problem == "silent"


def _completion(data: bytes, _: Path) -> None:
    found = read_completion(data)
    if isinstance(found, Unusable):
        assert found.reason
    else:
        found.text.encode()
        assert found.text or found.loss


def _reply(language: Language, data: bytes, _: Path) -> None:
    kernel = Kernel(examples.KERNELS[language][0], language)
    reading = read_reply(_any_text(data), kernel, 4)
    assert reading.edits or reading.unfit or reading.dropped
    assert len(reading.matches) == len(reading.edits) <= 4
    for edit in reading.edits:
        assert 0 < edit.prior <= 1
        after = applied(kernel, edit).kernel
        assert after.identity != kernel.identity
        assert len(after.source.encode()) <= MAX_SOURCE_BYTES
    for lost in (*reading.dropped, *reading.unfit):
        assert lost.reason.encode()


def _verdicts(data: bytes, _: Path) -> None:
    text = _any_text(data)
    assert all(0 <= each.edit < 3 and 0 <= each.promise <= 1 for each in read_verdicts(text, 3))
    assert "\n" not in read_bottleneck(text)


def _statement(data: bytes, _: Path) -> None:
    statement = read_statement(_any_text(data), "", "")
    (statement.reference + statement.task_file).encode()


def _tolerant_json(data: bytes, _: Path) -> None:
    text = _any_text(data)
    found = read_json(text)
    assert 0 <= found.end <= len(text)


def _asked_reply(data: bytes, _: Path) -> None:
    for reply in read_replies(_any_text(data)):
        for edit in proposals_of(reply).edits:
            assert edit.prior > 0
            assert edit.title


def _snapshot(data: bytes, folder: Path) -> None:
    path = folder / "memory.json"
    path.write_bytes(data)
    found = read_snapshot(path)
    path.write_text(encode_snapshot(found.experiences))
    assert read_snapshot(path).experiences == found.experiences


def _memory(data: bytes, folder: Path) -> None:
    path = folder / "memory.sqlite"
    path.write_bytes(data)
    with open_memory(path) as memory:
        for each in memory.everything():
            assert isinstance(each.experience.tried, int)
            encode_snapshot((each,))
        memory.runs()
        memory.forget(["a"])


def _manifest(data: bytes, folder: Path) -> None:
    (folder / "run.json").write_bytes(data)
    manifest = read_manifest(RunFolder(folder))
    msgspec.json.encode(manifest)


def _messages(decoder: msgspec.msgpack.Decoder[Any], data: bytes, _: Path) -> None:
    """Messages with their lengths; the input says where one ends and the next begins by a byte in front of each."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        theirs.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            theirs.send(len(data).to_bytes(8, "little") + data)
        while channel.has_spoken() and channel.receive_available():
            if (message := channel.next_message(decoder)) is not None:
                msgspec.msgpack.encode(message)
                return


def _sanitizer(data: bytes, _: Path) -> None:
    output = _text(data)
    for tool in sanitizer_output.Tool:
        for finding in sanitizer_output.parse_findings(tool, output):
            assert finding.message
            msgspec.json.encode(finding)
        assert sanitizer_output.failure(tool, output)


def _ncu(data: bytes, _: Path) -> None:
    text = _text(data)
    for finding in ncu.parse_findings(text):
        assert finding.sentence
        assert math.isfinite(finding.speedup)
    assert ncu.explanation(text.splitlines())


def _ptx(data: bytes, _: Path) -> None:
    module = parse_ptx(_text(data))
    for name, function in (module.entries | module.functions).items():
        assert function.name == name
        assert function.shared_bytes >= 0
        assert all(parameter.size > 0 for parameter in function.parameters)


def _cubin(data: bytes, _: Path) -> None:
    found = decoded(data)
    for name, function in found.functions.items() if found else ():
        assert all(each.address % 16 == 0 for each in function.instructions)
        constant_banks(data, name)
        resources(data, name)
    if found is None:
        resources(data, "softmax")


def _machine_code(data: bytes, _: Path) -> None:
    code = data[: len(data) // 16 * 16]
    for architecture in (80, 90):
        found = decode(code, architecture)
        if isinstance(found, UnknownWord):
            assert found.address < len(code)
        else:
            ast.literal_eval(repr([each.opcode for each in found]))
            assert len(found) == len(code) // 16


def _listing(data: bytes, _: Path) -> None:
    for function in parse(_text(data), examples.builds()[0].cubin).functions.values():
        assert all(each.address >= 0 for each in function.instructions)


def _listings() -> tuple[bytes, ...]:
    name = next(iter(examples.builds()[0].entries.values()), "softmax")
    text = (
        f'\t.section\t.text.{name},"ax",@progbits\n//## File "/x/kernel.cu", line 12\n'
        "        /*0000*/              LDC R1, c[0x0][0x28] ;\n.L_x_1:\n"
        "        /*0010*/         @!P0 BRA `(.L_x_1) ;\n        /*0020*/              EXIT ;\n"
    )
    return (text.encode(),)


def _gpu_description(data: bytes, _: Path) -> None:
    found = parse_architecture(_text(data), "odd.toml")
    assert found.chip.sms > 0


def _gpu_descriptions() -> tuple[bytes, ...]:
    folder = examples.TASKS.parent / "profiling" / "architectures"
    return tuple(path.read_bytes() for path in sorted(folder.glob("*.toml")))[:2]


def _of(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(each.encode() for each in texts)


_TOML = (
    b"[[launch]]\n",
    b"[",
    b"]",
    b"a.",
    b"[a.b]\n",
    b"={",
    b"[[",
    b'grid = ["n"]\n',
    b"shape = [1]\n",
    b"dtype",
    b"1979-05-27",
)
_PYTHON = (
    b"1+",
    b"not ",
    b"-",
    b"(",
    b"np.",
    b".T",
    b"lambda: ",
    b"**",
    b"if n else ",
    b"[:]",
    b"for i in range(n):\n ",
    b"min(1,",
)
_REPLY = (
    b'{"edits":[',
    b"<<<<<<< SEARCH\n",
    b"=======\n",
    b">>>>>>> REPLACE\n",
    b"```diff\n",
    b"@@ -1 +1 @@\n",
    b"<think>",
    b"</think>",
    b"#define BLOCK 64\n",
    b'"a":',
)
_PTX = (
    b".reg .b32 %r<",
    b"ld.global.u32 ",
    b"{",
    b"}",
    b";",
    b".param .u64 x",
    b".entry f(",
    b".align 0 ",
    b"[4294967296]",
    b"%r1, ",
    b"@",
    b".loc 1 2 3\n",
    b".shared ",
    b"<1000000000>",
    b".u128 ",
)


def targets() -> tuple[Target, ...]:
    """Every target, by name."""
    cuda, triton = Language.CUDA, Language.TRITON
    found = [
        Target("expression", _expression, lambda: examples.EXPRESSIONS, (ExpressionError,), _PYTHON, 2000),
        Target(
            "launch plan, CUDA",
            partial(_launch_plan, cuda),
            lambda: _of(examples.KERNELS[cuda]),
            (LaunchPlanError,),
            _TOML,
        ),
        Target(
            "launch plan, Triton",
            partial(_launch_plan, triton),
            lambda: _of(examples.KERNELS[triton]),
            (LaunchPlanError,),
            (*_TOML, *_PYTHON),
        ),
        Target("task file", _task_file, examples.task_files, (TaskError,), _TOML),
        Target(
            "unanchored reference",
            _unanchored_reference,
            lambda: examples.REFERENCES,
            (RefusedReferenceError,),
            _PYTHON,
        ),
        Target("patch", _patch, _patches, (PatchError,), (b"\0", b"\n", b"    ", b"...\n")),
        Target(
            "journal",
            _journal,
            examples.journals,
            (JournalError,),
            (b'{"event":"resumed"}\n', b'"node":', b"[", b"{"),
        ),
        Target("recorded space", _space, examples.spaces, (SpaceError,), (b'"cache": {', b"},", b'"time":')),
        Target(
            "configuration",
            _configuration,
            lambda: (b'# small\nblock = 32\nlayout = "row"\nx = 1\n',),
            (SpaceError,),
            _TOML,
        ),
        Target("cached reply", _cached_reply, lambda: examples.CACHED, (), (b'"reply":',)),
        Target("completion", _completion, lambda: examples.COMPLETIONS, (), (b'"choices":[', b'"message":{')),
        Target("reply, CUDA", partial(_reply, cuda), examples.replies, (), _REPLY, LARGEST_REPLY),
        Target("reply, Triton", partial(_reply, triton), examples.replies, (), _REPLY, LARGEST_REPLY),
        Target(
            "judge's reply",
            _verdicts,
            lambda: examples.VERDICTS,
            (),
            (b'"edit":', b'"promise":'),
            LARGEST_REPLY,
        ),
        Target(
            "statement of a task",
            _statement,
            lambda: examples.STATEMENTS,
            (),
            (b"```toml\n", b"```python", b"```"),
            LARGEST_REPLY,
        ),
        Target(
            "JSON of models",
            _tolerant_json,
            lambda: (*examples.replies(), *examples.VERDICTS),
            (),
            _REPLY,
            LARGEST_REPLY,
        ),
        Target(
            "outside program's reply",
            _asked_reply,
            lambda: examples.ASKED_REPLIES,
            (ReplyError,),
            (b'"edits":[',),
        ),
        Target(
            "memory, exported", _snapshot, examples.snapshots, (MemoryUnusableError,), (b'"experiences":[',)
        ),
        Target("memory, database", _memory, examples.memories, (MemoryUnusableError,)),
        Target("run.json", _manifest, examples.manifests, (RunError,), (b'"policy":{',)),
        Target(
            "compute-sanitizer",
            _sanitizer,
            examples.sanitizer_outputs,
            (),
            (b"========= ", b"    ", b" at 0x", b"Race reported between Read access at "),
        ),
        Target("ncu", _ncu, lambda: examples.NCU, (), (b'","', b'"\n"', b"==ERROR== ")),
        Target(
            "PTX", _ptx, lambda: _of(tuple(each.ptx for each in examples.builds())), (UnsupportedPtx,), _PTX
        ),
        Target(
            "cubin",
            _cubin,
            lambda: tuple(each.cubin for each in examples.builds()),
            (CubinError,),
            (b"\x7fELF", b"\xff" * 8),
        ),
        Target("machine code", _machine_code, _code),
        Target(
            "nvdisasm",
            _listing,
            _listings,
            (DisassemblerError,),
            (b"/*0010*/", b" ;\n", b".section .text.f,"),
        ),
        Target("GPU description", _gpu_description, _gpu_descriptions, (ArchitectureError,), _TOML),
    ]
    decoders: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
        "compiler": COMPILE_REPLIES,
        "compiler's requests": COMPILE_REQUESTS,
        "device": DEVICE_REPLIES,
        "gpu": GPU_REPLIES,
    }
    for who, decoder in decoders.items():
        found.append(
            Target(
                f"messages, {who}",
                partial(_messages, decoder),
                partial(_said, who),
                (ProtocolError,),
                _MESSAGES,
            )
        )
    return tuple(found)


_MESSAGES = (
    b"\x81",
    b"\x91",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xa4type",
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
)


def _said(who: str) -> tuple[bytes, ...]:
    return examples.messages()[who]


def _code() -> tuple[bytes, ...]:
    found = [
        section.data
        for build in examples.builds()
        for name, section in sections(build.cubin).items()
        if name.startswith(".text.")
    ]
    return tuple(found)
