"""How each reader of what comes from outside is called in fuzzing, and what has to be true of whatever it takes."""

from __future__ import annotations

import ast
import contextlib
import math
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mctskernel.asks import proposals_of, read_replies
from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.edit import Block, Category, Edit, Patch
from mctskernel.core.expression import MAX_MAGNITUDE, ExpressionError, evaluate, evaluate_int, names_in
from mctskernel.core.interpreted_reference import InterpretedReference
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import MAX_GRID, MAX_THREADS, plan_of, resolve
from mctskernel.core.proposer import Exchange, Purpose
from mctskernel.core.space import configuration_kernel, values_of
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.cache import CachedModel
from mctskernel.edits.llm.completion import Unusable, read_completion
from mctskernel.edits.llm.generate import read_statement
from mctskernel.edits.llm.judge import read_bottleneck, read_verdicts
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.options import LLMOptions
from mctskernel.edits.llm.replies import MAX_SOURCE_BYTES, read_reply
from mctskernel.edits.llm.tolerant_json import read_json
from mctskernel.edits.patch import applied, apply, as_patch
from mctskernel.edits.plan_text import with_plan
from mctskernel.experiments.fuzz import examples
from mctskernel.memory import encode_snapshot, open_memory, read_snapshot
from mctskernel.profiling import ncu, sanitizer_output
from mctskernel.profiling.architecture import parse_architecture
from mctskernel.profiling.emulator import parse_ptx
from mctskernel.profiling.machine_code.constant_banks import constant_banks
from mctskernel.profiling.machine_code.cubin import resources
from mctskernel.profiling.machine_code.decoder import UnknownWord, decode
from mctskernel.profiling.machine_code.disassembly import decoded
from mctskernel.profiling.machine_code.nvdisasm import parse
from mctskernel.profiling.processes.channel import Channel
from mctskernel.profiling.spaces import read_space, write_space
from mctskernel.run import RunFolder, read_manifest
from mctskernel.tree.events import encode
from mctskernel.tree.journal import Journal, read_events, read_tree


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


def expression(data: bytes, _: Path) -> None:
    text = _any_text(data)
    assert all(name.isidentifier() for name in names_in(text))
    value = evaluate(text, _NAMES)
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    assert abs(value) < MAX_MAGNITUDE, value
    with contextlib.suppress(ExpressionError):
        assert isinstance(evaluate_int(text, _NAMES), int)


def launch_plan(language: Language, data: bytes, _: Path) -> None:
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


def task_file(data: bytes, folder: Path) -> None:
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


def unanchored_reference(data: bytes, _: Path) -> None:
    reference = InterpretedReference(_text(data))
    values = {"x": np.ones((3, 4), np.float32), "y": np.ones((3, 4), np.float32), "n": 3}
    # Of what only numpy can say, its exceptions are: whoever calls a reference makes sentences of them.
    with np.errstate(all="ignore"), contextlib.suppress(ArithmeticError, IndexError, TypeError, ValueError):
        reference(**{name: values.get(name, values["x"]) for name in reference.__signature__.parameters})


def patch(data: bytes, _folder: Path) -> None:
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


def journal(data: bytes, folder: Path) -> None:
    path = folder / "journal.jsonl"
    path.write_bytes(data)
    events = list(read_events(path))
    assert all(encode(event) for event in events)
    tree = read_tree(path)
    with Journal(path, durable=False):
        pass
    assert list(read_events(path)) == events
    assert len(read_tree(path).nodes) == len(tree.nodes)


def space(data: bytes, folder: Path) -> None:
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


def configuration(data: bytes, _: Path) -> None:
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


def cached_reply(data: bytes, folder: Path) -> None:
    with CachedModel(_Silent(), LLMOptions(model="m"), folder) as model:
        call = Call(Purpose.PROPOSE, (Message("user", "hello"),))
        file = model._file(call)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        exchange = model.complete(call)
    assert isinstance(exchange.reply, str)
    assert exchange.recorded or exchange.problem == "silent"


def completion(data: bytes, _: Path) -> None:
    found = read_completion(data)
    if isinstance(found, Unusable):
        assert found.reason
    else:
        found.text.encode()
        assert found.text or found.loss


def reply(language: Language, data: bytes, _: Path) -> None:
    kernel = Kernel(examples.KERNELS[language][0], language)
    reading = read_reply(_any_text(data), kernel, 4)
    assert reading.edits or reading.unfit or reading.dropped
    assert len(reading.matches) == len(reading.edits) <= 4
    for edit in reading.edits:
        assert 0 < edit.prior <= 1
        after = applied(kernel, edit).kernel
        assert after.identity != kernel.identity
        assert len(after.source.encode()) <= MAX_SOURCE_BYTES
    for reason in (*(each.reason for each in reading.dropped), *(each.reason for each in reading.unfit)):
        assert reason.encode()


def verdicts(data: bytes, _: Path) -> None:
    text = _any_text(data)
    assert all(0 <= each.edit < 3 and 0 <= each.promise <= 1 for each in read_verdicts(text, 3))
    assert "\n" not in read_bottleneck(text)


def statement(data: bytes, _: Path) -> None:
    statement = read_statement(_any_text(data), "", "")
    (statement.reference + statement.task_file).encode()


def tolerant_json(data: bytes, _: Path) -> None:
    text = _any_text(data)
    found = read_json(text)
    assert 0 <= found.end <= len(text)


def asked_reply(data: bytes, _: Path) -> None:
    for reply in read_replies(_any_text(data)):
        for edit in proposals_of(reply).edits:
            assert edit.prior > 0
            assert edit.title


def snapshot(data: bytes, folder: Path) -> None:
    path = folder / "memory.json"
    path.write_bytes(data)
    found = read_snapshot(path)
    path.write_text(encode_snapshot(found.experiences))
    assert read_snapshot(path).experiences == found.experiences


def memory(data: bytes, folder: Path) -> None:
    path = folder / "memory.sqlite"
    path.write_bytes(data)
    with open_memory(path) as memory:
        for each in memory.everything():
            assert isinstance(each.experience.tried, int)
            encode_snapshot((each,))
        memory.runs()
        memory.forget(["a"])


def manifest(data: bytes, folder: Path) -> None:
    (folder / "run.json").write_bytes(data)
    manifest = read_manifest(RunFolder(folder))
    msgspec.json.encode(manifest)


def messages(decoder: msgspec.msgpack.Decoder[Any], data: bytes, _: Path) -> None:
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


def sanitizer(data: bytes, _: Path) -> None:
    output = _text(data)
    for tool in sanitizer_output.Tool:
        for finding in sanitizer_output.parse_findings(tool, output):
            assert finding.message
            msgspec.json.encode(finding)
        assert sanitizer_output.failure(tool, output)


def ncu_page(data: bytes, _: Path) -> None:
    text = _text(data)
    for finding in ncu.parse_findings(text):
        assert finding.sentence
        assert math.isfinite(finding.speedup)
    assert ncu.explanation(text.splitlines())


def ptx(data: bytes, _: Path) -> None:
    module = parse_ptx(_text(data))
    for name, function in {**module.entries, **module.functions}.items():
        assert function.name == name
        assert function.shared_bytes >= 0
        assert all(parameter.size > 0 for parameter in function.parameters)


def cubin(data: bytes, _: Path) -> None:
    found = decoded(data)
    for name, function in found.functions.items() if found else ():
        assert all(each.address % 16 == 0 for each in function.instructions)
        constant_banks(data, name)
        resources(data, name)
    if found is None:
        resources(data, "softmax")


def machine_code(data: bytes, _: Path) -> None:
    code = data[: len(data) // 16 * 16]
    for architecture in (80, 90):
        found = decode(code, architecture)
        if isinstance(found, UnknownWord):
            assert found.address < len(code)
        else:
            ast.literal_eval(repr([each.opcode for each in found]))
            assert len(found) == len(code) // 16


def listing(data: bytes, _: Path) -> None:
    for function in parse(_text(data), examples.builds()[0].cubin).functions.values():
        assert all(each.address >= 0 for each in function.instructions)


def gpu_description(data: bytes, _: Path) -> None:
    found = parse_architecture(_text(data), "odd.toml")
    assert found.chip.sms > 0
