"""What runs taught is remembered once, kept apart by where it comes from, and never ends a search."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mctskernel.core.edit import Experience
from mctskernel.core.evaluation import Source
from mctskernel.core.kernel import Language
from mctskernel.memory import MemoryUnusableError, take_snapshot
from mctskernel.run.search import remember, remember_run
from tests.synthetic_run import SyntheticRun, failed, quarantined, timed, with_configuration


def recall(path: Path, source: Source = Source.MODELLED) -> dict[str, Experience]:
    return {each.title: each for each in take_snapshot(path, Language.CUDA, "sm_90", source)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "memory"


def test_what_each_kind_of_edit_did(tmp_path: Path, small_task: Path, file: Path) -> None:
    run = SyntheticRun(tmp_path / "run", small_task)
    first, _ = run.edits(0, ("BLOCK 64 -> 128", timed(50)), ("BLOCK 64 -> 256", timed(99)))
    run.edits(first, ("BLOCK 128 -> 32", failed()), ("stream what twice writes (all of it)", quarantined(1)))
    assert remember(file, run.folder) == 4
    block, stream = recall(file)["block # -> #"], recall(file)["stream what _ writes"]
    assert (block.tried, block.failed, block.improved) == (3, 1, 1)
    assert block.log_gain == pytest.approx((0.6931 + 0.01005) / 2, rel=1e-3)
    assert (block.category, block.bottleneck) == ("tuning", "DRAM bandwidth")
    assert (stream.tried, stream.failed, stream.improved, stream.log_gain) == (1, 1, 0, 0.0)


def test_a_measured_gain_must_leave_both_intervals(tmp_path: Path, small_task: Path, file: Path) -> None:
    gpu = with_configuration(device="gpu")
    root = timed(100, Source.MEASURED, spread=0.05)
    run = SyntheticRun(tmp_path / "run", small_task, gpu, root)
    run.edits(
        0,
        ("overlaps", timed(93, Source.MEASURED, 0.05)),
        ("is apart", timed(93, Source.MEASURED, 0.001)),
        ("is noise", timed(99, Source.MEASURED)),
    )
    assert remember_run(file, run.folder) == ""
    found = recall(file, Source.MEASURED)
    assert {title: each.improved for title, each in found.items()} == {
        "overlaps": 0,
        "is apart": 1,
        "is noise": 0,
    }
    assert recall(file, Source.MODELLED) == {}


def test_a_run_that_goes_on_replaces_what_is_remembered_of_it(
    tmp_path: Path, small_task: Path, file: Path
) -> None:
    run = SyntheticRun(tmp_path / "run", small_task)
    (first,) = run.edits(0, ("tile", timed(50)))
    for _ in range(2):
        assert remember_run(file, run.folder) == ""
    assert recall(file)["tile"].tried == 1
    run.edits(first, ("tile", timed(25)))
    assert remember_run(file, run.folder) == ""
    assert recall(file)["tile"].tried == 2
    moved = run.folder.path.rename(tmp_path / "moved")
    assert remember_run(file, type(run.folder)(moved)) == ""
    assert recall(file)["tile"].tried == 2


def test_many_searches_write_at_once(tmp_path: Path, small_task: Path, file: Path) -> None:
    runs = [SyntheticRun(tmp_path / str(number), small_task) for number in range(8)]
    for run in runs:
        run.edits(0, ("tile", timed(50)))
    with ThreadPoolExecutor(len(runs)) as threads:
        assert set(threads.map(lambda run: remember_run(file, run.folder), runs)) == {""}
    assert recall(file)["tile"].tried == len(runs)


def test_a_file_that_is_no_memory_is_a_sentence_and_left_alone(tmp_path: Path, small_task: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"something else")
    run = SyntheticRun(tmp_path / "run", small_task)
    run.edits(0, ("tile", timed(50)))
    assert "can't be used" in remember_run(file, run.folder)
    with pytest.raises(MemoryUnusableError, match="is no folder"):
        recall(file)
    assert file.read_bytes() == b"something else"
