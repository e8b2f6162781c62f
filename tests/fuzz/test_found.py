"""Inputs that fuzzing has found, each of which some reader once answered with something else than its own refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.experiments.fuzz.examples import memories
from mctskernel.experiments.fuzz.targets import Target, targets
from mctskernel.experiments.fuzz.watch import watched
from mctskernel.experiments.fuzzing import warmed_up

TARGETS = {target.name: target for target in targets()}
DEEP = b"[" * 20_000
TASK = b'[[inputs]]\nname = "x"\nshape = ["n"]\n[[outputs]]\nname = "y"\nshape = ["n"]\n[shapes]\nsearch = [{n = 4}]\nverify = [{n = 4}]\n'  # noqa: E501
HEADER = b'{"schema":"mctskernel.journal","version":4}\n'
PLAN = b'"""\n[[launch]]\nkernel = "f"\ngrid = [1]\nargs = []\n"""\n'

FOUND = {
    "text that isn't UTF-8": (
        ("messages, device", b"\x81\xa4type\xa5Rea\x91dy"),
        ("run.json", b'{"schema_version": "\xff"}'),
        ("memory, exported", b'{"schema": "\xff"}'),
        ("memory, database", memories()[0].replace(b"CREATE TABLE run", b"CREATE T\xffBLE run")),
        ("cached reply", b'{"reply": "\xff"}'),
    ),
    "half of a surrogate pair": (
        ("completion", b'"\\ud800"'),
        ("completion", b'{"choices": [{"message": {"content": "x"}}], "usage": "\\ud800"}'),
    ),
    "nested too deeply": (
        ("run.json", b'{"x": ' + DEEP),
        ("memory, exported", b'{"x": ' + DEEP),
        ("cached reply", b'{"x": ' + DEEP),
        ("outside program's reply", b'{"x": ' + DEEP),
        ("journal", HEADER + b'{"event": "resumed", "x": ' + DEEP + b"\n"),
        ("messages, compiler", b"\x82\xa4type\xadCompilerReady\xa1x" + b"\x91" * 20_000),
        ("task file", b"x = " + DEEP),
        ("configuration", b"x = " + DEEP),
    ),
    "a number of thousands of digits": (
        ("task file", TASK + b"[scalars]\nx = " + b"9" * 5000),
        ("configuration", b"x = " + b"9" * 5000),
    ),
    "keys that take quadratic time": (
        ("task file", b"a." * 30_000 + b"a = 1"),
        ("configuration", b"a." * 30_000 + b"a = 1"),
        ("launch plan, CUDA", b"/*\n" + b"a." * 8000 + b"a = 1\n*/\n"),
        ("GPU description", b"a." * 30_000 + b"a = 1"),
    ),
    "a file that isn't the task's": (
        ("task file", b'kernel = "../../../../etc/passwd"\n' + TASK),
        ("task file", b'kernel = "/dev/zero"\n' + TASK),
        ("task file", b'kernel = "a\\u0000"\n' + TASK),
        ("task file", b'space = "' + b"a" * 5000 + b'"'),
    ),
    "a list where there should be a name": (
        ("task file", TASK.replace(b"shape", b'dtype = ["float32"]\nshape', 1)),
    ),
    "an expression that parses and is too deep to be written": (
        ("launch plan, Triton", PLAN + b"A = " + b"1 + " * 3000 + b"1\n"),
        ("launch plan, Triton", PLAN + b"A = " + b"-" * 900 + b"1\n"),
    ),
    "patterns that take forever": (
        ("nvdisasm", b"\r\n" * 20_000),
        ("nvdisasm", b".section .text.f,\n/*0000*/ MOV " + b" " * 40_000),
        ("PTX", b".shared " * 8000),
        ("PTX", b"/*" * 30_000),
        ("PTX", b".visible .entry f() { ret;" + b"\n" * 30_000 + b"x }"),
        ("PTX", b"\n" * 30_000 + b"x"),
    ),
    "a type of other letters": (
        ("PTX", ".visible .entry f(.param .u3\uff47 x) { ret; }".encode()),
        ("PTX", ".global .u3\uff47 x;".encode()),
    ),
    "complaints that quote all of it": (
        ("outside program's reply", b'{"version": 1, "node": 3, "' + b"a" * 30_000 + b'": 1}'),
        (
            "outside program's reply",
            b'{"node": 3, "edits": [{"title": "a", "category": "' + b"a" * 30_000 + b'"}]}',
        ),
    ),
    "statements that lack what they are about": (
        ("PTX", b".visible .entry f() { .loc; ret; }"),
        ("PTX", b".visible .entry f() { add.s64; ret; }"),
        ("PTX", b".visible .entry f() { addc.u32; ret; }"),
    ),
    "machine code with offsets to nowhere": (
        ("cubin", b""),
        ("cubin", b"\x7fELF" + b"\xff" * 200),
        ("cubin", "²".encode() * 400),
        ("nvdisasm", b".section .text.f,\n/*0000*/ EXIT ;\n"),
        ("nvdisasm", b""),
    ),
}


@pytest.mark.parametrize(
    ("target", "data"),
    [
        pytest.param(TARGETS[name], data, id=f"{name}: {what}")
        for what, inputs in FOUND.items()
        for name, data in inputs
    ],
)
def test_what_was_found_is_refused_in_words(target: Target, data: bytes, tmp_path: Path) -> None:
    warmed_up(target)
    watched(target.read, target.refusals, data, tmp_path)
