"""A task in words, and a model that writes kernels of it: right ones, and ones that are wrong in known ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mctskernel.core.proposer import Exchange
from mctskernel.edits.llm.model import Call
from tests.edits.llm.scripted import ScriptedModel, a_reply, an_edit

WANTED = "The sum of each row of a float32 matrix."

REFERENCE = """\
def reference(x):
    return x.sum(axis=1)
"""

TASK_FILE = """\
independent = "rows"

[[inputs]]
name = "x"
dtype = "float32"
shape = ["rows", "cols"]

[[outputs]]
name = "out"
dtype = "float32"
shape = ["rows"]

[shapes]
search = [{ rows = 256, cols = 64 }]
verify = [{ rows = 1, cols = 1 }, { rows = 5, cols = 33 }]
held_out = [{ rows = 3, cols = 40 }]

[tolerance]
ratio = inf
"""

KERNEL = """\
/*
[[launch]]
kernel = "row_sum"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]
*/
#define BLOCK 64

extern "C" __global__ void row_sum(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    float total = 0.0f;
    for (int col = 0; col < cols; ++col) total += x[(long long)row * cols + col];
    out[row] = total;
}
"""
WITHOUT_LAST_COLUMN = KERNEL.replace("col < cols", "col < cols - 1")
UNDECLARED = KERNEL.replace("float total = 0.0f;", "")
COALESCED = """\
/*
[[launch]]
kernel = "row_sum"
grid = ["rows"]
block = [32]
args = ["x", "out", "rows", "cols"]
*/
extern "C" __global__ void row_sum(const float* x, float* out, int rows, int cols) {
    float total = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 32) total += x[(long long)blockIdx.x * cols + col];
    for (int step = 16; step > 0; step /= 2) total += __shfl_down_sync(0xffffffffu, total, step);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}
"""
HELD_OUT_WRONG = KERNEL.replace("out[row] = total;", "out[row] = cols == 40 ? 0.0f : total;")


def a_kernel(source: str) -> str:
    """A reply that gives a whole kernel."""
    return a_reply(an_edit("The first kernel", category="algorithm", patch=None, source=source))


def a_statement(reference: str | None = REFERENCE, task: str | None = TASK_FILE) -> str:
    """A reply that states a task."""
    return json.dumps({"reference": reference, "task": task})


def writer(*replies: str | Callable[[Call], str | Exchange]) -> Writer:
    """A model that gives these replies in turn, and from then on the last."""
    left = list(replies)

    def answer(call: Call) -> str | Exchange:
        reply = left.pop(0) if len(left) > 1 else left[0]
        return reply if isinstance(reply, str) else reply(call)

    return Writer(answer)


class Writer(ScriptedModel):
    """A scripted model that can be closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def files(folder: Path) -> set[str]:
    """The names of a folder's files."""
    return {file.name for file in folder.iterdir()}
