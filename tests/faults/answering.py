"""A model's server in a process of its own, which faults can meet: `answering.py PORT`, 0 for any.

Prints its URL, then proposes edits of the tests' smallest kernel until its standard input is closed.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.edits.llm.loopback import Handler, Server, replies
from tests.edits.llm.scripted import a_reply, an_edit

SIZES = itertools.cycle(range(32, 1024, 8))


def propose(handler: Handler) -> None:
    """Two other block sizes than the kernel's."""
    prompt = handler.server.received.pop().body["messages"][1]["content"]
    (block,) = re.findall(r"#define BLOCK (\d+)", prompt)[-1:]
    chosen = [size for size in itertools.islice(SIZES, 3) if size != int(block)][:2]
    edits = [
        an_edit(f"Blocks of {size}", (f"#define BLOCK {block}\n", f"#define BLOCK {size}\n"))
        for size in chosen
    ]
    replies(a_reply(*edits))(handler)


class PortServer(Server):
    """On the port that the command line names."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", int(sys.argv[1])), Handler)


if __name__ == "__main__":
    server = PortServer((propose,))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.url, flush=True)
    sys.stdin.read()
