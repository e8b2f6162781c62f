"""Replies as models write them, each with the kernel that it was asked about and what it should be read as."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import mctskernel.tasks
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Loss

_FOLDER = Path(mctskernel.tasks.__file__).parent / "softmax"
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
    return {
        "rationale": f"{title}: the evidence asks for it.",
        "category": "tuning",
        "title": title,
        "expected_effect": "10 % less time.",
        "prior": 0.5,
        "patch": [{"search": search, "replace": replace}],
        "source": None,
        **others,
    }


BIGGER = _edit("Bigger blocks", "#define BLOCK 256\n", "#define BLOCK 512\n")
SMALLER = _edit("Smaller blocks", "#define BLOCK 256", "#define BLOCK 128", category="launch configuration")
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
THREE = json.dumps({"edits": [BIGGER, UNROLL, WHOLE]})
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
HUNK = "@@ -7,3 +7,3 @@\n */\n-#define BLOCK 256\n+#define BLOCK 512\n \n"
RAW_QUOTES = f"""{{"edits": [{{"category": "numerics", "title": "Fast math", "rationale": "It's "slow" now",
"prior": 0.3, "source": "{WHOLE_TEXT}", "patch": null}}]}}"""

CASES = (
    Case("schema", THREE, TITLES),
    Case("indented", INDENTED, TITLES),
    Case(
        "prose around",
        f"Sure! Here are {{three}} edits [as asked]:\n{INDENTED}\nLet me know {{how}} it goes.",
        TITLES,
    ),
    Case("fence", f"Here:\n\n```json\n{INDENTED}\n```\n\nHope that helps!", TITLES),
    Case("bare list", json.dumps([BIGGER, UNROLL]), TITLES[:2]),
    Case("one edit", json.dumps(BIGGER), TITLES[:1]),
    Case("an object a line", f"{json.dumps(BIGGER)}\n{json.dumps(UNROLL)}\n", TITLES[:2]),
    Case(
        "thoughts first",
        f'<think>\nMaybe {{"edits": [...]}}? No: <<<<<<< SEARCH\n</think>\n\n{THREE}',
        TITLES,
    ),
    Case(
        "thoughts without an opening tag",
        f"Let me see... {json.dumps(BIGGER)}\n</think>{json.dumps(UNROLL)}",
        TITLES[1:2],
    ),
    Case(
        "trailing commas and comments",
        INDENTED.replace("\n    }", ",\n    } // next").replace("null,", "null, /* - */"),
        TITLES,
    ),
    Case("raw line feeds", THREE.replace("\\n", "\n"), TITLES),
    Case("raw quotes", RAW_QUOTES, ("Fast math",)),
    Case("single quotes", str({"edits": [BIGGER, UNROLL]}), TITLES[:2]),
    Case(
        "triple quotes",
        f'{{"edits": [{{"title": "Fast math", "category": "numerics", "source": """{WHOLE_TEXT}"""}}]}}',
        ("Fast math",),
    ),
    Case("no quotes at names", INDENTED.replace('"title"', "title").replace('"prior"', "prior"), TITLES),
    Case("control characters", THREE.replace("Bigger", "Big\\u0000\\u202eger\\u001b"), TITLES),
    Case("half a surrogate pair", THREE.replace("0.0f;\\n#pragma", "0.0f;\\ud800\\n#pragma"), TITLES),
    Case("windows line ends", INDENTED.replace("\n", "\r\n").replace("\\n", "\\r\\n"), TITLES),
    Case(
        "other names",
        json.dumps(
            {
                "proposals": [
                    {
                        "name": "Bigger blocks",
                        "type": "Block size",
                        "changes": [{"old": "#define BLOCK 256", "new": "#define BLOCK 512"}],
                    }
                ]
            }
        ),
        TITLES[:1],
    ),
    Case(
        "patch as text",
        json.dumps(
            {
                "edits": [
                    {
                        **BIGGER,
                        "patch": "<<<<<<< SEARCH\n#define BLOCK 256\n=======\n#define BLOCK 512\n>>>>>>> REPLACE",
                    }
                ]
            }
        ),
        TITLES[:1],
    ),
    Case(
        "patch as difference",
        json.dumps(
            {
                "edits": [
                    {
                        **BIGGER,
                        "patch": f"--- a/kernel.cu\n+++ b/kernel.cu\n{HUNK}",
                    }
                ]
            }
        ),
        TITLES[:1],
    ),
    Case(
        "lines as list",
        json.dumps(
            {
                "edits": [
                    {
                        **BIGGER,
                        "patch": [
                            {"search": ["*/", "#define BLOCK 256"], "replace": ["*/", "#define BLOCK 512"]}
                        ],
                    }
                ]
            }
        ),
        TITLES[:1],
    ),
    Case(
        "fenced source", json.dumps({"edits": [{**WHOLE, "source": f"```cuda\n{WHOLE_TEXT}```"}]}), TITLES[2:]
    ),
    Case(
        "patch that fits nowhere beside a source",
        json.dumps({"edits": [{**WHOLE, "patch": [{"search": "int nothing;", "replace": ""}]}]}),
        TITLES[2:],
    ),
    Case("cut off in the third", THREE[:-400], TITLES[:2], losses=(Loss.CUT_OFF,)),
    Case(
        "cut off between edits",
        THREE[: THREE.index('{"rationale": "Fast')],
        TITLES[:2],
        losses=(Loss.CUT_OFF,),
    ),
    Case("cut off in the first", THREE[:150], losses=(Loss.CUT_OFF,)),
    Case("only the last brackets missing", THREE[:-1], TITLES),
    Case(
        "cut off behind a patch",
        THREE[: THREE.index('"source": null') + 5],
        TITLES[:1],
        losses=(Loss.CUT_OFF,),
    ),
    Case("cut off in thoughts", "<think>First, the memory traffic. " * 50, losses=(Loss.CUT_OFF,)),
    Case("blocks", BLOCKS, ("Bigger blocks", "Unroll and cache the maximum")),
    Case(
        "blocks cut off",
        BLOCKS[: BLOCKS.rindex("=======")],
        ("Bigger blocks", "Unroll and cache the maximum"),
        losses=(Loss.CUT_OFF,),
    ),
    Case(
        "bold headings",
        BLOCKS.replace("### Edit 1: Bigger blocks", "**1. Bigger blocks**"),
        ("Bigger blocks", "Unroll and cache the maximum"),
    ),
    Case(
        "whole source in a fence",
        f"**Fast exponentials**\n\nUse the intrinsic.\n\n```cuda\n{WHOLE_TEXT}```\nDone.",
        ("Fast exponentials",),
    ),
    Case(
        "two sources",
        f"## One\n```cpp\n{WHOLE_TEXT}```\n## Two\n```\n{CUDA.source.replace('256', '32')}```\n",
        ("One", "Two"),
    ),
    Case("source cut off", f"## One\n```cuda\n{WHOLE_TEXT[:-40]}", losses=(Loss.CUT_OFF,)),
    Case("nothing but source", WHOLE_TEXT, ("algorithm edit",)),
    Case(
        "difference in a fence",
        f"## Bigger blocks\n```diff\n--- a/kernel.cu\n+++ b/kernel.cu\n{HUNK}```\n",
        TITLES[:1],
    ),
    Case(
        "triton patch",
        json.dumps(
            {"edits": [{**BIGGER, "patch": [{"search": "num_warps = 1", "replace": "num_warps = 8"}]}]}
        ),
        TITLES[:1],
        kernel=TRITON,
    ),
    Case("triton source", f"## More warps\n```python\n{TRITON_TEXT}```", ("More warps",), kernel=TRITON),
    Case(
        "triton for cuda",
        json.dumps({"edits": [{**WHOLE, "source": TRITON_TEXT}]}),
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case("cuda for triton", json.dumps({"edits": [{**WHOLE}]}), losses=(Loss.WRONG_SCHEMA,), kernel=TRITON),
    Case("cuda fence for triton", f"```cuda\n{WHOLE_TEXT}```", losses=(Loss.WRONG_SCHEMA,), kernel=TRITON),
    Case(
        "triton patch for cuda",
        json.dumps(
            {
                "edits": [
                    {**BIGGER, "patch": [{"search": "x = tl.load(p)", "replace": "x = tl.load(p, mask=m)"}]}
                ]
            }
        ),
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case(
        "another file",
        json.dumps({"edits": [{**BIGGER, "file": "src/main.cpp"}]}),
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case(
        "difference of another file",
        "## Setup\n```diff\n--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-a\n+b\n```\n",
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case("a file of another name", json.dumps({"edits": [{**BIGGER, "file": "softmax.cu"}]}), TITLES[:1]),
    Case(
        "fits nowhere",
        json.dumps({"edits": [_edit("Nowhere", "float4 v = load4(x + i);", "")]}),
        unfit=("Nowhere",),
    ),
    Case(
        "fits twice",
        json.dumps({"edits": [_edit("Twice", "for (int col = 0; col < cols; ++col) {", "")]}),
        unfit=("Twice",),
    ),
    Case(
        "left out lines",
        json.dumps({"edits": [_edit("Elided", "float sum = 0.0f;\n// ... existing code ...\n}", "")]}),
        unfit=("Elided",),
    ),
    Case(
        "source without a plan",
        json.dumps({"edits": [{**WHOLE, "source": WHOLE_TEXT[WHOLE_TEXT.index("*/") + 2 :]}]}),
        unfit=("Fast exponentials",),
    ),
    Case(
        "plan that is no TOML",
        json.dumps({"edits": [_edit("Plan", 'grid = ["ceil_div(rows, BLOCK)"]', "grid = rows / BLOCK")]}),
        unfit=("Plan",),
    ),
    Case(
        "changes nothing",
        json.dumps({"edits": [_edit("Comment", "// One thread per row.", "// Each row has one thread.")]}),
        losses=(Loss.NO_CHANGE,),
    ),
    Case(
        "the same twice",
        json.dumps({"edits": [BIGGER, {**BIGGER, "title": "Larger blocks"}]}),
        TITLES[:1],
        losses=(Loss.REPEATED,),
    ),
    Case(
        "an edit without a change",
        json.dumps({"edits": [{"title": "Think", "rationale": "..."}, BIGGER]}),
        TITLES[:1],
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case(
        "edits that are texts",
        '{"edits": ["use shared memory", "use float4"]}',
        losses=(Loss.WRONG_SCHEMA,) * 2,
    ),
    Case(
        "another schema",
        '{"answer": {"score": 3, "text": "The kernel is fine."}}',
        losses=(Loss.WRONG_SCHEMA,),
    ),
    Case("no edits", '{"edits": []}', losses=(Loss.EMPTY,)),
    Case("empty", " \n ", losses=(Loss.EMPTY,)),
    Case("refusal", "I'm sorry, but I can't help with optimizing this code.", losses=(Loss.REFUSAL,)),
    Case("structured refusal", '{"refusal": "This is against my policy."}', losses=(Loss.REFUSAL,)),
    Case(
        "prose",
        "The kernel is bound by memory. Coalescing its loads would help. " * 3000,
        losses=(Loss.UNREADABLE,),
    ),
    Case("another language", "カーネルはメモリ帯域に制約されています。" * 20, losses=(Loss.UNREADABLE,)),
    Case(
        "an error page",
        "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>",
        losses=(Loss.UNREADABLE,),
    ),
)
