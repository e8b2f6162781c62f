"""A proposer that knows nothing of mctskernel but two commands and the JSON that they speak.

    python outside_proposer.py softmax runs/outside 24

Whatever can start a program can take part in the same way: replace `think` by a model, a person or another tuner.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "mctskernel"]  # `mctskernel`, wherever it is installed


def think(ask: dict) -> list[dict]:
    """A few edits of the asked node's kernel: constants halved and doubled, loops unrolled, faster intrinsics."""
    source, edits = ask["source"], []
    causes = [cause["bottleneck"] for cause in ask["evidence"]["causes"]]
    for line, name, value in re.findall(r"^(#define (\w+) (\d+))$", source, re.MULTILINE):
        for new in (int(value) // 2, int(value) * 2):
            # More blocks are what a kernel needs that leaves multiprocessors idle.
            wanted = new < int(value) and "too few blocks" in causes
            edits.append(
                {
                    "title": f"{name} {value} -> {new}",
                    "category": "tuning",
                    "expected_effect": "more blocks" if wanted else "",
                    "prior": 2.0 if wanted else 1.0,
                    "patch": [{"search": line, "replace": f"#define {name} {new}"}],
                }
            )
    if "#pragma unroll" not in source and "for (" in source:
        unrolled = re.sub(r"^( *)(for \()", r"\1#pragma unroll 4\n\1\2", source, flags=re.MULTILINE)
        edits.append({"title": "unroll loops by 4", "category": "unrolling", "source": unrolled})
    if re.search(r"\bexpf\(", source):
        fast = re.sub(r"\bexpf\(", "__expf(", source)
        edits.append({"title": "__expf", "category": "numerics", "source": fast})
    tried = {attempt["title"] for attempt in ask["siblings"]}
    return [edit for edit in edits if edit["title"] not in tried]


def run(*words: object) -> str:
    """What a command prints; what it says on standard error is seen."""
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - our own words


def main(task: str, folder: Path, budget: int, *options: str) -> None:
    """Begin a run, then think of what is asked and tell it, until nothing is asked."""
    run("search", task, "--proposer", "outside", "--budget", budget, "--out", folder, *options)
    while asks := [json.loads(line) for line in run("ask", folder, "-n", 2).splitlines()]:
        replies = folder / "replies.jsonl"
        replies.write_text(
            "".join(
                json.dumps({"node": ask["node"], "edits": think(ask), "proposer": "doubler"}) + "\n"
                for ask in asks
            )
        )
        print(run("tell", folder, replies), end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
