"""The server as an agent meets it, through the protocol's own client."""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jsonschema
import pytest
import uvicorn
from click.testing import CliRunner
from mcp import Client, types
from mcp.client.stdio import StdioServerParameters

from mctskernel.cli import main
from mctskernel.config import SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.external.mcp import TEXTS, TOOLS, make_server
from mctskernel.external.mcp_engine import Engine
from tests import landscape

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[landscape.Opener]:
    return landscape.stand_in(monkeypatch)


@pytest.fixture
def engine(tmp_path: Path, small_task: Path, device: list[landscape.Opener]) -> Iterator[Engine]:
    engine = Engine(*settings(tmp_path / "runs", small_task.parent))
    yield engine
    engine.close()


def settings(runs: Path, tasks: Path | None) -> tuple[Path, Path | None, SearchConfig]:
    return runs, tasks, SearchConfig(device="model", workers=2, budget=Budget(40))


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """A tool's answer."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    found = result.structured_content
    assert isinstance(found, dict)
    (text,) = result.content
    assert isinstance(text, types.TextContent)
    assert json.loads(text.text) == found
    return found


async def refusal(client: Client, name: str, **arguments: Any) -> str:
    """The sentence with which a tool refuses."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.content
    (text,) = result.content
    assert isinstance(text, types.TextContent)
    return text.text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_agent_finds_the_bottom_of_the_bowl(engine: Engine, mode: str) -> None:
    async with Client(make_server(engine), mode=mode) as client:
        asked = await call(client, "start_search", task="task", run="first")
        for words in (
            "def reference",
            "launch plan in TOML",
            "## The kernel to edit: node 0",
            "propose_edits",
            "is no improvement",
        ):
            assert words in asked["text"]
        while asked["node"] is not None:
            edits = landscape.steps(asked["text"])
            told = await call(client, "propose_edits", run="first", node=asked["node"], edits=edits)
            assert len(told["edits"]) == 4
            for each in told["edits"]:
                if each["made"] is not None and each["seconds"]:
                    over_start = each["over_best"] * told["status"]["best_speedup"]
                    assert each["speedup"] == pytest.approx(over_start)
            asked = await call(client, "next_kernel", run="first")
            for words in ("def reference", "worked on other kernels", "in the reply format"):
                assert words not in asked["text"]
        assert asked["search"] == "the budget is spent"
        status = asked["status"]
        assert status["evaluations"] == 40
        assert status["remaining"]["evaluations"] == 0
        assert status["answer"] == status["best"]
        assert status["best_speedup"] == pytest.approx(38)
        best = await call(client, "best_kernel", run="first")
        assert "38x over the starting kernel" in best["trajectory"]
        assert Kernel(best["source"]).macros == Kernel(landscape.kernel(7, 2).source).macros
        nodes = json.loads((await call(client, "read_search", run="first", text="nodes"))["text"])
        assert nodes["total"] == 40
        assert nodes["nodes"][0]["speedup"] == pytest.approx(38)
        assert (await call(client, "list_tasks"))["runs"][0]["best_speedup"] == pytest.approx(38)


class Stuck(landscape.InProcess):
    """Judges the starting kernel and then nothing more."""

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        if len(self.judged) >= 1:
            time.sleep(timeout or 0.1)
            return []
        return super().wait(timeout)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cancelled_call_ends_and_loses_nothing(
    engine: Engine, device: list[landscape.Opener], mode: str
) -> None:
    device.append(lambda: Stuck(2))
    async with Client(make_server(engine), mode=mode) as client:
        asked = await call(client, "start_search", task="task", run="first")
        edits = landscape.steps(asked["text"])
        with anyio.move_on_after(0.3):
            await client.call_tool("propose_edits", {"run": "first", "node": 0, "edits": edits})
        with anyio.fail_after(60):
            await call(client, "best_kernel", run="first")
            device.append(lambda: landscape.InProcess(2))
            await call(client, "next_kernel", run="first")
        shown = json.loads((await call(client, "read_search", run="first", text="node"))["text"])
        assert [edit["title"] for edit in shown["edits"]] == [edit["title"] for edit in edits]
        assert any(edit["outcome"] == "ok" for edit in shown["edits"])


@pytest.mark.parametrize(
    "run", ["../first", "/etc", "a/b", "..", ".hidden", "", "x" * 200, "a\x00b", "link", "first\n"]
)
async def test_what_leads_out_of_the_runs_is_refused(engine: Engine, tmp_path: Path, run: str) -> None:
    engine.runs.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (engine.runs / "link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    async with Client(make_server(engine)) as client:
        for name, others in (
            ("start_search", {"task": "task"}),
            ("next_kernel", {}),
            ("best_kernel", {}),
            ("propose_edits", {"node": 0, "edits": [{"title": "a", "source": ""}]}),
            ("read_search", {"text": "task"}),
            ("profile_kernel", {"node": 0}),
        ):
            if (name, run) != ("start_search", ""):  # Left out, a run gets a name.
                assert "is not the name of a run" in await refusal(client, name, run=run, **others)
    assert sorted(tmp_path.rglob("*")) == before


async def test_nothing_that_an_agent_calls_changes_a_task_a_verdict_or_the_baseline(engine: Engine) -> None:
    async with Client(make_server(engine)) as client:
        asked = await call(client, "start_search", task="task", run="first")
        folder = engine.view("first").folder
        task = {file: file.read_bytes() for file in folder.task.iterdir()}
        manifest = folder.manifest.read_bytes()
        lines = folder.journal.read_bytes()
        nasty = [
            {"title": "outcome: ok", "rationale": "speedup 1000x", "source": landscape.kernel(7, 3).source},
            {"title": "verdict.json", "source": landscape.kernel(1, 1).source + "// outcome: ok\n"},
        ]
        told = await call(client, "propose_edits", run="first", node=0, edits=nasty)
        assert told["edits"][0]["outcome"] in ("build error", None)
        assert told["status"]["best_speedup"] == 1
        for words, said in (
            ({"edits": [{"title": "a", "source": "", "outcome": "ok"}]}, "can't take these edits"),
            ({"edits": [{"title": "a", "source": "", "patch": []}]}, "either a source or a patch"),
            ({"edits": [{"title": "a", "source": "", "category": "luck"}]}, "Categories are tuning, "),
            ({"edits": "[" * 9}, "`edits` can't be"),
            ({"node": -1}, "The argument `node` can't be -1: it should be greater than or equal to 0."),
            ({"run": None}, "The argument `run` can't be null: it should be a valid string."),
        ):
            arguments = {"run": "first", "node": 0, "edits": landscape.steps(asked["text"])} | words
            sentence = await refusal(client, "propose_edits", **arguments)
            assert said in sentence
            assert "pydantic" not in sentence
        for name in ("best_kernel", "finish_search"):
            await call(client, name, run="first")
        assert {file: file.read_bytes() for file in folder.task.iterdir()} == task
        assert folder.manifest.read_bytes() == manifest
        assert folder.journal.read_bytes().startswith(lines)


async def test_the_budget_is_what_the_user_allows_at_the_most(engine: Engine) -> None:
    async with Client(make_server(engine)) as client:
        assert "40 evaluations at the most" in await refusal(
            client, "start_search", task="task", evaluations=41
        )
        asked = await call(client, "start_search", task="task", evaluations=1)
        assert asked["search"] == "the budget is spent"
        assert asked["status"]["answer"] == 0
        run = asked["status"]["run"]
        source = landscape.kernel(7, 2).source
        told = await call(client, "propose_edits", run=run, node=0, edits=[{"title": "a", "source": source}])
        assert told["search"] == "the budget is spent"
        assert told["edits"][0]["outcome"] is None
        assert told["status"]["evaluations"] == 1


async def test_answers_are_short_and_the_whole_is_there_to_read(engine: Engine) -> None:
    long = landscape.kernel(3, 3).source + "// " + "x" * 60_000 + "\n"
    async with Client(make_server(engine)) as client:
        await call(client, "start_search", task="task", run="first")
        await call(client, "propose_edits", run="first", node=0, edits=[{"title": "long", "source": long}])
        asked = await call(client, "next_kernel", run="first")
        assert asked["node"] == 1
        assert len(asked["text"]) < 50_000
        best = await call(client, "best_kernel", run="first")
        assert "read_search has the whole source of node 1" in best["source"]
        text, offset = "", 0
        while offset is not None:
            page = await call(client, "read_search", run="first", text="source", node=1, offset=offset)
            text, offset = text + page["text"], page["next_offset"]
        assert text == long


@pytest.mark.parametrize("text", TEXTS)
async def test_every_text_can_be_read(engine: Engine, text: str) -> None:
    async with Client(make_server(engine)) as client:
        await call(client, "start_search", task="task", run="first")
        page = await call(client, "read_search", run="first", text=text)
        assert page["characters"] == len(page["text"])
        if text in ("task", "nodes", "tree", "node", "counters", "evaluation"):
            json.loads(page["text"])
        if text not in ("task", "nodes", "tree", "trajectory"):
            assert "no node 9" in await refusal(client, "read_search", run="first", text=text, node=9)


async def test_a_node_that_does_not_exist_is_refused_and_the_run_stays_open(
    engine: Engine, device: list[landscape.Opener]
) -> None:
    async with Client(make_server(engine)) as client:
        await call(client, "start_search", task="task", run="first")
        device.append(lambda: pytest.fail("opened again"))
        said = await refusal(
            client, "propose_edits", run="first", node=99, edits=[{"title": "a", "source": ""}]
        )
        assert "no node 99" in said
        assert "There is no run 'second'" in await refusal(client, "next_kernel", run="second")
        await call(client, "next_kernel", run="first")


async def test_tools_say_what_they_take_and_whether_they_only_read(engine: Engine) -> None:
    async with Client(make_server(engine)) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [tool.__name__ for tool in TOOLS]
        for tool in tools:
            assert tool.description
            assert len(tool.description) < 400
            assert "$ref" not in json.dumps(tool.input_schema["properties"].get("edits"))
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            assert tool.annotations
        (telling,) = [tool.input_schema for tool in tools if tool.name == "propose_edits"]
        edits = landscape.steps(landscape.kernel(1, 1).source)
        jsonschema.validate({"run": "first", "node": 0, "edits": edits}, telling)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {"run": "first", "node": 0, "edits": [{"title": "a", "outcome": "ok"}]}, telling
            )
        writing = {tool.name for tool in tools if tool.annotations and not tool.annotations.read_only_hint}
        assert writing == {"start_search", "next_kernel", "propose_edits", "finish_search", "profile_kernel"}
        assert "Unknown tool" in await refusal(client, "set_verdict")


@pytest.mark.parametrize("page", ["mcp.md", "agents.md"])
def test_the_documentation_names_tools_and_texts(page: str) -> None:
    text = (Path(__file__).parents[1] / "docs" / page).read_text("utf-8")
    names = {tool.__name__ for tool in TOOLS}
    verbs = "|".join({name.partition("_")[0] for name in names})
    named = set(re.findall(rf"`((?:{verbs})_[a-z]+)\b", text))
    assert named <= names
    if page == "mcp.md":
        assert named == names
        assert set(TEXTS) <= set(re.findall("`([a-z]+)`", text))


async def test_http_answers_this_machine_and_no_page_of_a_browser(engine: Engine) -> None:
    app = make_server(engine).streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        while not server.started:
            await anyio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/mcp"
        async with Client(url) as client:
            await call(client, "start_search", task="task", run="first")
        async with httpx2.AsyncClient() as browser:
            hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                answer = await browser.post(url, json=hello, headers=headers)
                assert answer.status_code in (403, 421)
        server.should_exit = True


@pytest.mark.slow
async def test_the_command_serves_over_standard_input_and_output(tmp_path: Path, small_task: Path) -> None:
    words = ["-m", "mctskernel", "mcp", "--runs", str(tmp_path / "runs"), "--tasks", str(small_task.parent)]
    words += ["--device", "model", "--workers", "1", "--budget", "3"]
    async with Client(StdioServerParameters(command=sys.executable, args=words)) as client:
        asked = await call(client, "start_search", task="task", run="first")
        edit = {
            "title": "larger blocks",
            "category": "launch configuration",
            "patch": [{"search": "#define BLOCK 64", "replace": "#define BLOCK 256"}],
        }
        told = await call(client, "propose_edits", run="first", node=0, edits=[edit])
        assert told["edits"][0]["outcome"] == "ok"
        found = await call(client, "finish_search", run="first")
        status = found["status"]
        assert "passed" in status["validation"]
        assert found["node"] == status["answer"]
        asked_for = {"run": "first", "text": "source", "node": found["node"]}
        assert found["source"] == (await call(client, "read_search", **asked_for))["text"]
        assert status["remaining"]["evaluations"] == 1
        assert "BLOCK" in asked["text"]
    assert (tmp_path / "runs" / "first" / "best" / "answer.json").is_file()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mctskernel.external.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    result = CliRunner().invoke(main, ["mcp"])
    assert result.exit_code == 5
    assert 'pip install "mctskernel[mcp]"' in result.stderr
