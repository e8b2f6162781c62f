"""Kept results: every table and plot is what its JSON says, and every file has an entry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.experiments import results
from mctskernel.experiments.records.documents import Document, Section, Table, Text, markdown
from mctskernel.experiments.records.entries import ENTRIES
from mctskernel.experiments.records.entry import Entry, Group
from mctskernel.experiments.records.provenance import Provenance, Rows, read_provenance, write_result
from mctskernel.experiments.records.renderers import page
from mctskernel.experiments.results import check, readme

FOLDER = Path(__file__).parents[2] / "docs" / "results"

MADE = Provenance("python -m somewhere", "a machine", "2026-01-01", {"numpy": "2.0"})
DOCUMENT = Document(
    "Title",
    [Section("Part", [Table(["name", "value"], [["a", "1.0"], ["longer", "20.0"]]), Text("It ends.")])],
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.data)
def test_a_kept_result_is_what_its_json_says(entry: Entry) -> None:
    assert [each for each in check(FOLDER, [entry]) if each.file in (entry.data, *entry.renderers)] == []


def test_every_file_has_an_entry_and_the_page_is_theirs() -> None:
    bare = [
        Entry(each.data, each.group, each.remark, beside=(*each.beside, *each.renderers)) for each in ENTRIES
    ]
    assert [each for each in check(FOLDER, bare) if each.file != "README.md"] == []
    assert (FOLDER / "README.md").read_text() == readme(FOLDER, ENTRIES)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Entry]:
    write_result(tmp_path / "made.json", DOCUMENT, MADE)
    return tmp_path, Entry("made.json", Group.ENGINE, "A remark.", page("made.json"))


def test_what_is_written_passes_and_any_change_is_seen(
    kept: tuple[Path, Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, entry = kept
    monkeypatch.setattr(results, "ENTRIES", (entry,))
    done = CliRunner().invoke(results.main, ["--folder", str(folder), "--write"])
    assert done.exit_code == 0, done.output
    assert "| longer |  20.0 |" in (folder / "made.md").read_text()
    assert "| `made.json`, [made.md](made.md) | `python -m somewhere` |" in (folder / "README.md").read_text()

    changed = json.loads((folder / "made.json").read_text())
    changed["sections"][0]["blocks"][0]["rows"][1][1] = "30.0"
    (folder / "made.json").write_text(json.dumps(changed))
    assert [each.file for each in check(folder, [entry])] == ["made.md"]

    (folder / "stray.json").write_text("{}")
    (folder / "README.md").write_text("typed by hand")
    assert [each.file for each in check(folder, [entry])] == ["made.md", "stray.json", "README.md"]
    done = CliRunner().invoke(results.main, ["--folder", str(folder)])
    assert done.exit_code == 1
    assert "stray.json: It has no entry" in done.output


def test_a_result_without_provenance_or_without_its_table_is_named(kept: tuple[Path, Entry]) -> None:
    folder, entry = kept
    assert [each.file for each in check(folder, [entry])] == ["made.md", "README.md"]
    (folder / "made.md").write_text(markdown(DOCUMENT) + "\n")
    (folder / "made.json").write_bytes(msgspec.json.encode(DOCUMENT))
    (problem,) = check(folder, [entry])
    assert problem.file == "made.json"
    assert "`provenance`" in problem.sentence


def test_lists_are_kept_as_rows_and_what_makes_a_result_is_found_out(tmp_path: Path) -> None:
    write_result(tmp_path / "list.json", [1, 2])
    data = (tmp_path / "list.json").read_bytes()
    assert msgspec.json.decode(data, type=Rows[int]).rows == [1, 2]
    found = read_provenance(data)
    assert found.machine
    assert found.versions["numpy"]
    assert str(tmp_path) not in found.command


def test_plots_of_another_version_of_matplotlib_are_not_compared(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "tree_scale.json", tmp_path)
    drawn = (FOLDER / "tree_scale.svg").read_text()
    (entry,) = (each for each in ENTRIES if each.data == "tree_scale.json")
    version = results._MATPLOTLIB.search(drawn)
    assert version
    (tmp_path / "tree_scale.svg").write_text(drawn.replace(version.group(1), "0.0.1"))
    assert [each.file for each in check(tmp_path, [entry])] == ["README.md"]
    (tmp_path / "tree_scale.svg").write_text(drawn.replace("evaluated nodes", "typed by hand"))
    assert [each.file for each in check(tmp_path, [entry])] == ["tree_scale.svg", "README.md"]
