"""Malformed input ends in a sentence and an exit code, never in a traceback (`mctskernel` of tests.cli.command)."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.cli.command import flat, mctskernel
from tests.generated import REFERENCE
from tests.spaces import bowl, failing, write_space
from tests.synthetic_run import SyntheticRun, timed

FILES = {
    "binary": b"\xff\xfe\x00\x01" * 64,
    "empty": b"",
    "list.toml": b"[[[",
    "unknown.toml": b"budgett = 3\n",
    "weights.toml": b"softmax = -1\n",
    "no_kernel.cu": b"int main() {}\n",
    "template.cu": b"template <int N> __global__ void k(float* x) { x[N] = 1.0f; }\n",
    "input_only.cu": b"__global__ void k(const float* x) {}\n",
    "unfinished.cu": b"__global__ void k(float* x) { if (\n",
    "fails.py": b"import torch\n\ndef f(x):\n    return torch.nothing_like_this(x)\n\ndef g(x, y):\n    return x @ y\n",
    "exits.py": b"import sys\n\nsys.exit(3)\n",
    "raises.py": b"1 / 0\n",
    "other.py": b"x = 1\n",
    "sums.py": REFERENCE.encode(),
    "line.jsonl": b'{"node": 0, "edits": [{"title": "t"}]}\n',
    "words.jsonl": b"not json\n",
    "deep.jsonl": b"[" * 100_000,
}

LLM = "search run/task --device model --out new --proposer llm"
WORDS = "generate add --device model --unverified-reference"
CASES = (
    ("search --budget 0", 2, "budget"),
    ("search --workers -1", 2, "workers"),
    ("search --strategy guess", 2, "best-of-n"),
    ("search --policy exploration=nan", 2, "exploration"),
    ("search --policy patience", 2, "NAME=VALUE"),
    ("search --policy sellection=uct", 2, "setting of policy 'sellection'"),
    ("search softmax --device model --gpus 1", 2, "--gpus is for --device gpu"),
    ("search softmax --device model --counters few", 2, "--counters is for"),
    ("search softmax --device gpu --gpus 0 --executor ray", 2, "`ray start`"),
    ("search softmax --device model --ray-address a:1", 2, "for --executor ray"),
    ("search --executor slurm", 2, "'slurm' is not one of"),
    ("search nothing", 3, "neither a folder"),
    ("search other.py", 3, "is no benchmark's problem"),
    ("search run/task --budget 2 --out empty/new", 4, "can't be used"),
    ("search --space failing.json --out new", 3, "All 3 configurations of failing failed"),
    ("search --space bowl.json softmax --out new", 2, "not both"),
    ("search --space bowl.json --device model --out new", 2, "--device recorded"),
    ("search --device recorded --out new", 2, "needs --space"),
    (LLM, 2, "--model NAME"),
    (f"{LLM} --model m --api-key-env NO_SUCH_KEY", 2, "NO_SUCH_KEY"),
    ("search run/task --device model --out new --model m", 2, "--proposer llm or mixed"),
    (f"{LLM} --model m --expert nobody", 2, "There is no expert 'nobody'"),
    (f"{LLM} --model m --base-url http://u:p@host/v1", 2, "--base-url"),
    ("generate add --device model --model m", 2, "the reference too, unchecked"),
    (f"{WORDS} --reference sums.py --model m", 2, "--unverified-reference is for a task without"),
    (WORDS, 2, "--model NAME"),
    (f"{WORDS} --model m --api-key-env NO_SUCH_KEY", 2, "NO_SUCH_KEY"),
    (f"{WORDS} --model m --max-usd 1", 2, "price"),
    (f"{WORDS} --model m --expert nobody", 2, "There is no expert 'nobody'"),
    (f"{WORDS} --model m --out-task .", 3, "already holds something"),
    ("check nothing.py nor-this.py", 2, "no file nothing.py"),
    ("evaluate nothing-of-the-kind", 3, "There is no task"),
    ("evaluate run/task kernel.ptx", 3, "is no kernel"),
    ("evaluate run/task --language triton", 3, "kernel.py"),
    ("resume nowhere --device gpu", 4, "is not a run"),
    ("show run 999 --diff", 4, "no node 999"),
    ("show run 999 0 --json", 4, "no node 999"),
    ("search --seconds nan", 2, "nan is not in the range x>0"),
    ("search --max-usd nan", 2, "nan is not in the range"),
    ("search --budget 1e3", 2, "'1e3' is not a valid integer"),
    ("search softmx", 3, "Did you mean 'softmax'?"),
    ("serch softmax", 2, "Did you mean 'search'?"),
    ("search softmax --architecture H10", 2, "Did you mean 'H100'?"),
    ("search softmax --proposer rulez", 2, "Did you mean 'rules'?"),
    ("search softmax --device gpuu", 2, "There is no device 'gpuu'"),
    ("search softmax --policy strategi=uct", 2, "Did you mean 'strategy'?"),
    ("search softmax --config missing.toml", 2, "does not exist"),
    ("search softmax --config list.toml", 2, "not valid TOML"),
    ("search softmax --config binary", 2, "binary"),
    ("search softmax --config unknown.toml", 2, "budgett"),
    ("search --space empty", 3, "empty"),
    ("search --space missing.json", 3, "missing.json"),
    ("search softmax matmul --weights weights.toml", 2, "above 0"),
    ("search softmax softmax", 2, "same name"),
    ("search softmax --weights weights.toml", 2, "several TASKs"),
    ("search softmax --proposer replay", 2, "--from RUN"),
    ("search softmax --from run", 2, "--proposer replay"),
    ("search binary", 3, "There is no task 'binary'"),
    ("resume run --seconds nan", 2, "nan"),
    ("resume binary", 4, "is not a run"),
    ("show run 999", 4, "no node 999"),
    ("show run -- -1", 2, "x>=0"),
    ("show run one", 2, "'one' is not a valid integer"),
    ("show run 0 999", 4, "no node 999"),
    ("show run --diff", 2, "--diff needs a NODE"),
    ("show run 0 --diff", 4, "the starting kernel"),
    ("show empty", 4, "is not a run"),
    ("report run -o .", 2, "is a directory"),
    ("report run -o pipe", 4, "no regular file"),
    ("report run -o link", 4, "no regular file"),
    ("report run -o /dev/null", 4, "no regular file"),
    ("report run -o empty/report.html", 4, "can't be written"),
    ("report run --figure evaluations", 2, "needs -o FILE"),
    ("report run --figure evaluations -o best.bmp", 2, "ends in none of"),
    ("report run --figure forest -o a.pdf", 2, "'forest' is not one of"),
    ("report run run", 2, "one RUN"),
    ("compare run", 2, "can't be compared"),
    ("compare run binary", 4, "neither a run"),
    ("best run --as solution", 3, "benchmark"),
    ("best missing", 4, "is not a run"),
    ("export run --schema", 2, "--schema is for"),
    ("export", 2, "Missing argument 'RUN'"),
    ("watch empty", 4, "is not a run"),
    ("bench empty", 2, "Missing option '--out'"),
    ("tell run words.jsonl", 2, "neither lines of JSON nor an answer"),
    ("tell run deep.jsonl", 2, "neither lines of JSON nor an answer"),
    ("tell run binary", 2, "neither lines of JSON nor an answer"),
    ("tell run missing.jsonl", 2, "No such file"),
    ("ask missing", 4, "is not a run"),
    ("new-task t --from missing.cu", 3, "missing.cu"),
    ("new-task t --from no_kernel.cu", 3, "no __global__ function"),
    ("new-task t --from binary", 3, "binary"),
    ("new-task t --from template.cu", 3, "is a template"),
    ("new-task t --from input_only.cu", 3, "no output"),
    ("new-task t --from unfinished.cu", 3, "unfinished.cu"),
    ("new-task t --shape 4", 2, "--shape needs --from-torch"),
    ("new-task t --from-torch fails:f --from no_kernel.cu", 2, "exclude each other"),
    ("new-task t --from-torch fails", 3, "names no function"),
    ("new-task t --from-torch nothing:f --shape 4", 3, "can't be imported"),
    ("new-task t --from-torch exits:f --shape 4", 3, "can't be imported"),
    ("new-task t --from-torch raises:f --shape 4", 3, "ZeroDivisionError"),
    ("new-task t --from-torch fails:ff --shape 4", 3, "There is no function in fails called 'ff'"),
    ("new-task t --from-torch fails:f --shape 4x4", 3, "fails.py, line 4): AttributeError"),
    ("new-task t --from-torch fails:g --shape 4x4", 3, "give a --shape for each tensor"),
    ("new-task t --from-torch fails:g --shape 4x4 --shape 5x4", 3, "RuntimeError"),
    ("new-task t --from-torch fails:g --shape 4xz --shape 4", 3, "4xz"),
    ("new-task t --from-torch fails:g --shape 4x4 --shape 4x4 --dtype fp23", 3, "Did you mean 'fp32'?"),
    ("new-task t --from-problem empty", 3, "empty"),
    ("new-task run --from-problem missing.py", 3, "missing.py"),
    ("check binary", 3, "There is no task 'binary'"),
    ("check fails.py exits.py --seed -1", 2, "-1"),
    ("evaluate softmax missing.cu", 3, "missing.cu"),
    ("evaluate softmax binary", 3, "binary"),
    ("ablate nothing", 2, "nothing"),
    ("ablate list.toml", 2, "not valid TOML"),
    ("ablate search --spaces synthetic:ridge", 2, "There is no synthetic space 'ridge'"),
    ("gauntlet --corpus empty", 2, "empty"),
    ("generate empty --model m", 2, "Give --reference FILE"),
)
"""Words, the exit code, and a part of what is said."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_task: Path) -> Path:
    """A folder with malformed files, a run, a pipe, and a link to nowhere."""
    found = tmp_path_factory.mktemp("malformed")
    for name, content in FILES.items():
        (found / name).write_bytes(content)
    os.mkfifo(found / "pipe")
    (found / "link").symlink_to(found / "nowhere")
    for space in (bowl(), failing()):
        write_space(space, found / f"{space.name}.json")
    run = SyntheticRun(found / "run", small_task)
    run.edits(0, ("wider", timed(50.0)), ("unrolled", timed(40.0)))
    return found


@pytest.mark.parametrize(("words", "code", "says"), CASES, ids=[case[0] for case in CASES])
def test_a_mistake_is_a_sentence(
    words: str, code: int, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    before = [each for each in sorted(folder.rglob("*")) if "__pycache__" not in each.parts]
    result = mctskernel(*words.split())
    assert (result.exit_code, says in flat(result.stderr)) == (code, True), result.output
    assert sorted(each for each in folder.rglob("*") if "__pycache__" not in each.parts) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_run_is_a_sentence(seed: int, folder: Path, tmp_path: Path) -> None:
    """Bytes of its files are cut, replaced or doubled, or a field of a JSON file gets another value."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    run = shutil.copytree(folder / "run", tmp_path / "run")
    file = rng.choice(sorted(each for each in run.rglob("*") if each.is_file() and each.stat().st_size))
    data = file.read_bytes()
    at = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 3 and file.suffix == ".json":
        fields = json.loads(data)
        fields[rng.choice(sorted(fields))] = rng.choice((None, -1, 99, "x", [], {}, True))
        file.write_text(json.dumps(fields))
    else:
        junk = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        file.write_bytes((data[:at], data[:at] + junk + data[at + 1 :], data[:at] + data)[kind % 3])
    for words in (
        "show {}",
        "show {} 1",
        "show {} 0 1",
        "report {}",
        "best {}",
        "export {}",
        "compare {} {}",
    ):
        mctskernel(*words.replace("{}", str(run)).split())
