"""Everything that reads what comes from outside, with what has to be true of whatever it takes.

A target's `read` takes an input's bytes and a folder of its own. It returns if the input is taken and sound, raises one
of the `refusals` if it is refused, and fails an assertion if what was taken isn't what it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.asks import ReplyError
from mctskernel.core.expression import ExpressionError
from mctskernel.core.kernel import Language
from mctskernel.core.launch_plan import LaunchPlanError
from mctskernel.core.reference_language import RefusedReferenceError
from mctskernel.core.space import SpaceError
from mctskernel.core.task import TaskError
from mctskernel.edits.patch import PatchError
from mctskernel.experiments.fuzz import examples, readers
from mctskernel.memory import MemoryUnusableError
from mctskernel.profiling.architecture import ArchitectureError
from mctskernel.profiling.emulator import UnsupportedPtx
from mctskernel.profiling.gpu.protocol import GPU_REPLIES
from mctskernel.profiling.machine_code.cubin import CubinError, sections
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError
from mctskernel.profiling.processes.channel import ProtocolError
from mctskernel.profiling.processes.compile_process import COMPILE_REPLIES, COMPILE_REQUESTS
from mctskernel.profiling.processes.device_protocol import REPLIES as DEVICE_REPLIES
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError

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
        Target(
            "expression", readers.expression, lambda: examples.EXPRESSIONS, (ExpressionError,), _PYTHON, 2000
        ),
        Target(
            "launch plan, CUDA",
            partial(readers.launch_plan, cuda),
            lambda: _of(examples.KERNELS[cuda]),
            (LaunchPlanError,),
            _TOML,
        ),
        Target(
            "launch plan, Triton",
            partial(readers.launch_plan, triton),
            lambda: _of(examples.KERNELS[triton]),
            (LaunchPlanError,),
            (*_TOML, *_PYTHON),
        ),
        Target("task file", readers.task_file, examples.task_files, (TaskError,), _TOML),
        Target(
            "unanchored reference",
            readers.unanchored_reference,
            lambda: examples.REFERENCES,
            (RefusedReferenceError,),
            _PYTHON,
        ),
        Target("patch", readers.patch, _patches, (PatchError,), (b"\0", b"\n", b"    ", b"...\n")),
        Target(
            "journal",
            readers.journal,
            examples.journals,
            (JournalError,),
            (b'{"event":"resumed"}\n', b'"node":', b"[", b"{"),
        ),
        Target(
            "recorded space",
            readers.space,
            examples.spaces,
            (SpaceError,),
            (b'"cache": {', b"},", b'"time":'),
        ),
        Target(
            "configuration",
            readers.configuration,
            lambda: (b'# small\nblock = 32\nlayout = "row"\nx = 1\n',),
            (SpaceError,),
            _TOML,
        ),
        Target("cached reply", readers.cached_reply, lambda: examples.CACHED, (), (b'"reply":',)),
        Target(
            "completion",
            readers.completion,
            lambda: examples.COMPLETIONS,
            (),
            (b'"choices":[', b'"message":{'),
        ),
        Target("reply, CUDA", partial(readers.reply, cuda), examples.replies, (), _REPLY, LARGEST_REPLY),
        Target("reply, Triton", partial(readers.reply, triton), examples.replies, (), _REPLY, LARGEST_REPLY),
        Target(
            "judge's reply",
            readers.verdicts,
            lambda: examples.VERDICTS,
            (),
            (b'"edit":', b'"promise":'),
            LARGEST_REPLY,
        ),
        Target(
            "statement of a task",
            readers.statement,
            lambda: examples.STATEMENTS,
            (),
            (b"```toml\n", b"```python", b"```"),
            LARGEST_REPLY,
        ),
        Target(
            "JSON of models",
            readers.tolerant_json,
            lambda: (*examples.replies(), *examples.VERDICTS),
            (),
            _REPLY,
            LARGEST_REPLY,
        ),
        Target(
            "outside program's reply",
            readers.asked_reply,
            lambda: examples.ASKED_REPLIES,
            (ReplyError,),
            (b'"edits":[',),
        ),
        Target(
            "memory, exported",
            readers.snapshot,
            examples.snapshots,
            (MemoryUnusableError,),
            (b'"experiences":[',),
        ),
        Target("memory, database", readers.memory, examples.memories, (MemoryUnusableError,)),
        Target("run.json", readers.manifest, examples.manifests, (RunError,), (b'"policy":{',)),
        Target(
            "compute-sanitizer",
            readers.sanitizer,
            examples.sanitizer_outputs,
            (),
            (b"========= ", b"    ", b" at 0x", b"Race reported between Read access at "),
        ),
        Target("ncu", readers.ncu_page, lambda: examples.NCU, (), (b'","', b'"\n"', b"==ERROR== ")),
        Target(
            "PTX",
            readers.ptx,
            lambda: _of(tuple(each.ptx for each in examples.builds())),
            (UnsupportedPtx,),
            _PTX,
        ),
        Target(
            "cubin",
            readers.cubin,
            lambda: tuple(each.cubin for each in examples.builds()),
            (CubinError,),
            (b"\x7fELF", b"\xff" * 8),
        ),
        Target("machine code", readers.machine_code, _code),
        Target(
            "nvdisasm",
            readers.listing,
            _listings,
            (DisassemblerError,),
            (b"/*0010*/", b" ;\n", b".section .text.f,"),
        ),
        Target("GPU description", readers.gpu_description, _gpu_descriptions, (ArchitectureError,), _TOML),
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
                partial(readers.messages, decoder),
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


def _patches() -> tuple[bytes, ...]:
    source = examples.KERNELS[Language.CUDA][0]
    lines = source.splitlines(keepends=True)
    near = "".join(lines[12:15]).replace(" ", "  ")
    return (
        "\0".join([source, lines[10], lines[10] + "// more\n", "".join(lines[12:14]), "int i;\n"]).encode(),
        "\0".join([source, near, "x\n", lines[3].replace("a", "b"), ""]).encode(),
        "\0".join([lines[5] * 400, lines[5] * 30, "x"]).encode(),
    )


def _listings() -> tuple[bytes, ...]:
    name = next(iter(examples.builds()[0].entries.values()), "softmax")
    text = (
        f'\t.section\t.text.{name},"ax",@progbits\n//## File "/x/kernel.cu", line 12\n'
        "        /*0000*/              LDC R1, c[0x0][0x28] ;\n.L_x_1:\n"
        "        /*0010*/         @!P0 BRA `(.L_x_1) ;\n        /*0020*/              EXIT ;\n"
    )
    return (text.encode(),)


def _gpu_descriptions() -> tuple[bytes, ...]:
    folder = examples.TASKS.parent / "profiling" / "architectures"
    return tuple(path.read_bytes() for path in sorted(folder.glob("*.toml")))[:2]


def _of(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(each.encode() for each in texts)
