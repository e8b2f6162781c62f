"""What fuzzing begins from: inputs as this program writes them, or as the programs write whose output it reads."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from functools import cache
from itertools import product
from pathlib import Path

import msgspec

import mctskernel.tasks
from mctskernel.core.device import Trial
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.experience import Experience
from mctskernel.core.kernel import Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.space import Entry, Parameter, SearchSpace, configuration_kernel
from mctskernel.core.task import Task, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.executors.recorded import executor_of
from mctskernel.memory import Remembered, encode_snapshot, open_memory
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.candidate import prepare
from mctskernel.profiling.gpu import protocol as gpu
from mctskernel.profiling.processes import compile_process as compiling
from mctskernel.profiling.processes import device_protocol as device
from mctskernel.profiling.spaces import write_space
from mctskernel.profiling.stages import Stages
from mctskernel.run import Budget
from mctskernel.search import Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.journal import Journal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

TASKS = Path(mctskernel.tasks.__file__).parent
SANITIZER_OUTPUTS = Path(__file__).resolve().parents[2] / "tests" / "profiling" / "sanitizer_outputs"

KERNELS = {
    language: tuple(path.read_text() for path in sorted(TASKS.glob(f"*/kernel{language.suffix}")))
    for language in (Language.CUDA, Language.TRITON)
}

EXPRESSIONS = (
    b"ceil_div(n, BLOCK)",
    b"min(rows, 1024) * 4 + (n % 8 if n > 3 else -2)",
    b"next_pow2(n) << 2 >> 1",
    b"abs(-n) // BLOCK / 1",
    b"1.5e3 <= n",
)

REFERENCES = (
    *(path.read_bytes() for path in sorted(TASKS.glob("*/reference.py"))),
    b"""import numpy as np

def reference(x, y, n):
    out = np.zeros((4, 4))
    for i in range(n):
        row = x[i, :].max() if n > 2 else np.sum(x, axis=0)
        out[i % 4] += row * y.T[0] ** 2
    return out, np.concatenate([x, y]).reshape(-1)[:3]
""",
)


def task_files() -> tuple[bytes, ...]:
    """Those of the built-in tasks."""
    return tuple(path.read_bytes() for path in sorted(TASKS.glob("*/task.toml")))


def replies() -> tuple[bytes, ...]:
    """What models reply with, in each of the forms that are read."""
    source = KERNELS[Language.CUDA][0]
    line = next(line for line in source.splitlines() if line.startswith("#define"))
    other = f"{line} // more"
    edit = {
        "rationale": 'It is "slow": \\n and so on.',
        "category": "launch configuration",
        "title": "Bigger blocks",
        "expected_effect": "fewer of them",
        "prior": 0.7,
        "patch": [{"search": line, "replace": other}],
        "source": None,
    }
    whole = {**edit, "title": "All anew", "patch": None, "source": source.replace(line, line + "1")}
    listed = json.dumps({"edits": [edit, whole]}, indent=1)
    return tuple(
        text.encode()
        for text in (
            listed,
            f"<think>Well, {{}} ...</think>\nHere it is:\n```json\n{listed}\n```\nDone.",
            listed.replace('"patch"', "patch").replace("null", "None, // nothing"),
            f"### Edit 1: Bigger blocks\nCategory: tuning\nPrior: 70 %\nWhy: it helps\n"
            f"kernel.cu\n<<<<<<< SEARCH\n{line}\n=======\n{other}\n>>>>>>> REPLACE\n",
            f"## Title: Bigger\n```diff\n@@ -7,3 +7,3 @@\n-{line}\n+{other}\n \n```\n",
            f"**All anew**\n```cuda\n{source}\n```\n",
            "I'm sorry, I can't help with that.",
        )
    )


VERDICTS = (
    json.dumps(
        {
            "bottleneck": "DRAM",
            "verdicts": [
                {"edit": 0, "reason": "It helps.", "promise": 0.8},
                {"edit": 1, "reason": "No.", "promise": 0},
            ],
        }
    ).encode(),
)
STATEMENTS = (
    json.dumps({"reference": REFERENCES[0].decode(), "task": 'name = "x"\n'}).encode(),
    b"Here.\n```python\n" + REFERENCES[0] + b"```\nand\n```toml\nname = 'x'\n```\n",
)
COMPLETIONS = tuple(
    json.dumps(each).encode()
    for each in (
        {
            "choices": [{"message": {"role": "assistant", "content": "text"}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
        },
        {
            "choices": [
                {"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}, "finish_reason": "length"}
            ]
        },
        {"choices": [{"message": {"content": [{"text": "a"}, {"text": "b"}], "refusal": None}}]},
        {"error": {"message": "no such model"}},
    )
)
ASKED_REPLIES = tuple(
    json.dumps(each).encode()
    for each in (
        {"node": 0, "edits": [{"title": "a", "source": "x"}], "dollars": 0.5, "proposer": "me"},
        {
            "node": 3,
            "edits": [{"title": "b", "patch": [{"search": "x", "replace": ""}], "prior": 2}],
            "version": 1,
        },
    )
)
CACHED = (b'{"reply":"hello","input_tokens":3,"output_tokens":4,"estimated":false}',)
NCU = (
    b'==PROF== Connected\n"ID","Kernel Name","Metric Name","Rule Name","Rule Type","Rule Description",'
    b'"Estimated Speedup Type","Estimated Speedup"\n'
    b'"0","transpose","","HighPipeUtilization","OPT","All pipelines are ""under-used"".","local","97.95"\n'
    b'"0","transpose","Elapsed Cycles"\n'
    b'"1","conflicts","","SharedMemoryConflicts","OPT","A 32 - way\nbank conflict.","global","1,096.42"\n',
    b"==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==PROF== Disconnected\n",
)


def sanitizer_outputs() -> tuple[bytes, ...]:
    """What compute-sanitizer printed on a GPU, where this is a checkout; otherwise one record of it."""
    kept = tuple(path.read_bytes() for path in sorted(SANITIZER_OUTPUTS.glob("*.txt")))
    return kept or (
        b"========= Invalid __global__ write of size 4 bytes\n=========     at f(int *)+0x90 in kernel.cu:41\n"
        b"=========     by thread (3,0,0) in block (1,0,0)\n=========     Address 0x7f00 is out of bounds\n",
    )


def space() -> SearchSpace:
    """A small space with a failure in it."""
    parameters = (
        Parameter("block", (32, 64, 128)),
        Parameter("layout", ("row", "column")),
        Parameter("x", (1, 2)),
    )
    entries = tuple(
        Entry(values, Outcome.BUILD_ERROR, word="CompilationFailedConfig")
        if number == 4
        else Entry(values, Outcome.OK, 1e-3 * (number + 1), stage_seconds={"compile": 1.0})
        for number, values in enumerate(product(*(each.values for each in parameters)))
    )
    return SearchSpace("small", parameters, entries, device="A GPU", kernel="small_kernel")


@cache
def spaces() -> tuple[bytes, ...]:
    """Kernel Tuner's cache file, the same compressed and unfinished, and T4 results."""
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "small.json", Path(folder) / "small.json.gz"
        write_space(space(), plain)
        write_space(space(), packed)
        cached, compressed = plain.read_bytes(), packed.read_bytes()
    result = {
        "configuration": {"block": 32, "layout": "row"},
        "times": {"compilation": 3.0, "validation": 0.1},
        "invalidity": "correct",
        "measurements": [{"name": "time", "value": 1.5, "unit": "ms"}],
        "objectives": ["time"],
    }
    failed = {**result, "configuration": {"block": 64, "layout": "row"}, "invalidity": "compile"}
    t4 = {"schema_version": "1.0.0", "metadata": {"timeunit": "ms"}, "results": [result, failed]}
    return cached, compressed, cached[: len(cached) * 2 // 3], json.dumps(t4).encode()


@cache
def journals() -> tuple[bytes, ...]:
    """A real search's, of a recorded space."""
    searched = space()
    kernel = configuration_kernel(searched, searched.entries[0].values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(path, durable=False) as journal:
            tree_search = TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0)
            root = tree_search.start(kernel, Policy(), seed=0)
            executor = executor_of(searched, 1)
            Search(
                tree_search=tree_search,
                task=Task(searched.name, "", Path(), (), (), {}, (), (), (), Tolerance(), kernel),
                proposer=ParameterProposer(searched, 0, 1),
                executor=executor,
                budget=Budget(evaluations=6),
                follow=lambda _: None,
                clock=executor.clock,
            ).run((root,))
        written = path.read_bytes()
    return written, b"".join(written.splitlines(keepends=True)[:4])


_EXPERIENCE = Remembered(
    Source.MODELLED, Experience("tiling", "Tile it", "dram_bandwidth", "cuda", "sm_90", 3, 1, 1, 0.25)
)


def snapshots() -> tuple[bytes, ...]:
    """An exported memory."""
    return (encode_snapshot((_EXPERIENCE, _EXPERIENCE)).encode(),)


@cache
def memories() -> tuple[bytes, ...]:
    """The database of a memory with one run in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.sqlite"
        with open_memory(path):
            pass
        with sqlite3.connect(path) as connection:
            connection.execute("INSERT INTO run VALUES ('a', 'softmax', 'cuda', 'sm_90', 'modelled', '2026')")
            connection.execute("INSERT INTO experience VALUES ('a', 'tiling', 'Tile', 'dram', 3, 1, 1, 0.5)")
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        return (path.read_bytes(),)


def manifests() -> tuple[bytes, ...]:
    """run.json."""
    configuration = {
        "task": "softmax",
        "device": "model",
        "architecture": "H100",
        "proposer": "rules",
        "seed": 0,
        "workers": 1,
        "budget": {"evaluations": 5, "seconds": None, "dollars": None},
        "policy": msgspec.to_builtins(Policy()),
    }
    manifest = {
        "schema_version": 1,
        "created": "2026-01-01",
        "version": "1",
        "configuration": configuration,
        "fingerprint": {"gpu": "none"},
    }
    return (json.dumps(manifest).encode(),)


@cache
def builds() -> tuple[Build, ...]:
    """The starting kernels of some tasks, compiled."""
    found = []
    for name in ("softmax", "histogram", "transpose"):
        task = load_task(TASKS / name, Language.CUDA)
        made = build(task.starting_kernel, _entries(task), "sm_90")
        if isinstance(made, Build):
            found.append(made)
    return tuple(found)


def _entries(task: Task) -> tuple[str, ...]:
    return tuple(dict.fromkeys(launch.kernel for launch in plan_of(task.starting_kernel).launches))


@cache
def messages() -> dict[str, tuple[bytes, ...]]:
    """What each kind of process that works for the search says, in MessagePack."""
    task = load_task(TASKS / "transpose", Language.CUDA)
    refused = Evaluation(Outcome.BUILD_ERROR, Source.MEASURED, "no", log="a\nb", stage_seconds={"build": 0.5})
    candidate = prepare(task, task.starting_kernel, "sm_90", Stages())
    said: dict[str, tuple[msgspec.Struct, ...]] = {
        "compiler": (
            compiling.CompilerReady(),
            compiling.Refused(refused),
            compiling.Prepared(candidate, {"build": 0.1}),
            compiling.CompilerBroken("no"),
        ),
        "device": (
            device.Ready(),
            device.Evaluated(refused),
            device.Fingerprinted({"gpu": "none"}),
            device.Broken("no"),
        ),
        "gpu": (
            gpu.Done(),
            gpu.Loaded({"f": 1024}),
            gpu.Ran({0: "over"}, "x"),
        ),
        "compiler's requests": (
            compiling.OpenCompiler("x", Language.CUDA, Trial.SEARCH, "sm_90", 1 << 30),
            compiling.Prepare(task.starting_kernel),
        ),
    }
    return {who: tuple(msgspec.msgpack.encode(each) for each in those) for who, those in said.items()}
