"""Replies as models write them, each with the kernel that it was asked about and what it should be read as."""

import json
from dataclasses import dataclass
from pathlib import Path

import mctskernel.tasks.builtin
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Loss
from tests.edits.llm.scripted import a_reply, an_edit

_FOLDER = Path(mctskernel.tasks.builtin.__file__).parent / "softmax"
CUDA = Kernel((_FOLDER / "kernel.cu").read_text(), Language.CUDA)
TRITON = Kernel((_FOLDER / "kernel.py").read_text(), Language.TRITON)


@dataclass(frozen=True)
class Case:
    """A reply, the titles of the edits that apply and of those that don't fit, and the losses."""

    name: str
    text: str
    titles: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    kernel: Kernel = CUDA


def _edit(title: str, search: str, replace: str, **others: object) -> dict[str, object]:
    return an_edit(title, (search, replace), **others)


BIGGER = _edit("Bigger blocks", "#define BLOCK 256\n", "#define BLOCK 512\n")
SUM = "            sum += expf(x[row * cols + col] - largest);\n"
UNROLL = _edit(
    "Unroll the sum",
    f"        float sum = 0.0f;\n        for (int col = 0; col < cols; ++col) {{\n{SUM}",
    f"        float sum = 0.0f;\n#pragma unroll 4\n        for (int col = 0; col < cols; ++col) {{\n{SUM}",
    category="unrolling",
)
WHOLE_TEXT = CUDA.source.replace("BLOCK 256", "BLOCK 64").replace("expf", "__expf")
WHOLE = {**_edit("Fast exponentials", "", ""), "category": "numerics", "patch": None, "source": WHOLE_TEXT}
TRITON_TEXT = TRITON.source.replace("num_warps = 1", "num_warps = 4")
THREE = a_reply(BIGGER, UNROLL, WHOLE)
INDENTED = json.dumps({"edits": [BIGGER, UNROLL, WHOLE]}, indent=2)
TITLES = ("Bigger blocks", "Unroll the sum", "Fast exponentials")
BLOCKS = """\
I looked at the counters. Two ideas:

### Edit 1: Bigger blocks
category: tuning
prior: 0.6
rationale: Too few warps
per block.
expected effect: 10 % less time.

kernel.cu
```cuda
<<<<<<< SEARCH
#define BLOCK 256
=======
#define BLOCK 512
>>>>>>> REPLACE
```

### Edit 2: Unroll and cache the maximum
**Category:** Loop unrolling
**Prior:** 35%

First the sum:

<<<<<<< SEARCH
        float sum = 0.0f;
=======
        float sum = 0.0f;
#pragma unroll 4
>>>>>>> REPLACE

and then the output:

<<<<<<< SEARCH
            out[row * cols + col] = expf(x[row * cols + col] - largest) / sum;
=======
            out[row * cols + col] = __expf(x[row * cols + col] - largest) / sum;
>>>>>>> REPLACE

Both should help.
"""


CASES = (
    Case("schema", THREE, TITLES),
    Case(
        "prose around",
        f"Sure! Here are {{three}} edits [as asked]:\n{INDENTED}\nLet me know {{how}} it goes.",
        TITLES,
    ),
    Case("fence", f"Here:\n\n```json\n{INDENTED}\n```\n\nHope that helps!", TITLES),
    Case(
        "thoughts first",
        f'<think>\nMaybe {{"edits": [...]}}? No: <<<<<<< SEARCH\n</think>\n\n{THREE}',
        TITLES,
    ),
    Case("raw line feeds", THREE.replace("\\n", "\n"), TITLES),
    Case("fenced source", a_reply({**WHOLE, "source": f"```cuda\n{WHOLE_TEXT}```"}), TITLES[2:]),
    Case("cut off in the third", THREE[:-400], TITLES[:2], losses=(Loss.CUT_OFF,)),
    Case(
        "broken in the second",
        THREE.replace('"unrolling"', "unrolling"),
        ("Bigger blocks", "Fast exponentials"),
    ),
    Case("broken", json.dumps(BIGGER).replace('"tuning"', "tuning"), losses=(Loss.WRONG_SCHEMA,)),
    Case("blocks", BLOCKS, ("Bigger blocks", "Unroll and cache the maximum")),
    Case(
        "blocks cut off",
        BLOCKS[: BLOCKS.rindex("=======")],
        ("Bigger blocks", "Unroll and cache the maximum"),
        losses=(Loss.CUT_OFF,),
    ),
    Case(
        "whole source in a fence",
        f"**Fast exponentials**\n\nUse the intrinsic.\n\n```cuda\n{WHOLE_TEXT}```\nDone.",
        ("Fast exponentials",),
    ),
    Case("nothing but source", WHOLE_TEXT, ("algorithm edit",)),
    Case(
        "triton patch",
        a_reply({**BIGGER, "patch": [{"search": "num_warps = 1", "replace": "num_warps = 8"}]}),
        TITLES[:1],
        kernel=TRITON,
    ),
    Case("triton for cuda", a_reply({**WHOLE, "source": TRITON_TEXT}), losses=(Loss.WRONG_SCHEMA,)),
    Case("fits nowhere", a_reply(_edit("Nowhere", "float4 v = load4(x + i);", "")), unfit=("Nowhere",)),
    Case(
        "source without a plan",
        a_reply({**WHOLE, "source": WHOLE_TEXT[WHOLE_TEXT.index("*/") + 2 :]}),
        unfit=("Fast exponentials",),
    ),
    Case(
        "plan that is no TOML",
        a_reply(_edit("Plan", 'grid = ["ceil_div(rows, BLOCK)"]', "grid = rows / BLOCK")),
        unfit=("Plan",),
    ),
    Case(
        "changes nothing",
        a_reply(_edit("Comment", "// One thread per row.", "// Each row has one thread.")),
        losses=(Loss.NO_CHANGE,),
    ),
    Case(
        "an edit without a change",
        a_reply({"title": "Think", "rationale": "..."}, BIGGER),
        TITLES[:1],
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case("no edits", '{"edits": []}', losses=(Loss.EMPTY,)),
    Case("empty", " \n ", losses=(Loss.EMPTY,)),
    Case("refusal", "I'm sorry, but I can't help with optimizing this code.", losses=(Loss.REFUSAL,)),
)
