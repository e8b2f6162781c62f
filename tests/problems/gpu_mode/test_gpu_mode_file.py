"""task.yml of GPU MODE problems, read without running anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mctskernel.core.task import TaskError
from mctskernel.problems.gpu_mode.task_file import folder_of, read_task_file
from mctskernel.problems.registry import find_benchmark
from tests.problems.gpu_mode.folders import YAML, write_task


def test_a_folder_with_a_task_file_is_read(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    benchmark = find_benchmark(folder)
    assert benchmark is not None
    assert benchmark.name == "GPU MODE"
    assert folder_of(folder / "task.yml") == folder
    assert folder_of(tmp_path) is None
    found = read_task_file(folder)
    assert (found.name, len(found.tests), len(found.benchmarks)) == ("scale_py", 2, 2)
    assert set(found.modules) == {"task", "utils", "reference"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('lang: "py"', 'lang: "cu"'), "submissions in 'cu'"),
        (lambda text: text + "multi_gpu: true\n", "several GPUs"),
        (lambda text: text[: text.index("benchmarks:")], "no benchmarks"),
        (lambda text: text.replace("../utils.py", "../../../etc/utils.py"), "outside of its folder"),
        (lambda text: text.replace("../utils.py", "../missing.py"), "which is missing"),
        (
            lambda text: text.replace('{"name": "reference.py", "source": "reference.py"}', "{}"),
            "missing required field `name`",
        ),
        (lambda text: "!!python/object/apply:os.system ['id']", "is not valid"),
        (lambda text: text.replace('"rows": 6,', '"rows": [6],'), "Expected `bool | int | float | str`"),
    ],
)
def test_a_bad_task_file_is_refused(change: Callable[[str], str], said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as raised:
        read_task_file(write_task(tmp_path, yaml=change(YAML)))
    assert said in str(raised.value)
