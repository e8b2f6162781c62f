"""What is installed: the packages at the root under one name, with everything that they import."""

import ast
import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mctskernel

ROOT = Path(__file__).parent.parent
PACKAGES = ("tree", "profiling", "edits", "experiments")

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    def run(*words: str | Path) -> str:
        done = subprocess.run(
            list(map(str, words)), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    left_out = shutil.ignore_patterns(".*", "build", "docs", "tests", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=left_out)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", source)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    installed = tmp_path / "venv" / "bin"
    run(sys.executable, "-m", "pip", "--python", installed / "python", "install", "--no-compile", wheel)
    assert mctskernel.__version__ in run(installed / "mctskernel", "--version")
    assert "Ready to search" in run(installed / "mctskernel", "doctor")
    run(installed / "mctskernel", "new-task", "mine")
    searched = run(
        installed / "mctskernel", "search", "mine", "--device", "model", "--budget", "2", "--out", "run"
    )
    assert "Final validation: " in searched
    run(installed / "mctskernel", "report", "run")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_at_the_root_is_reached_through_a_relative_link(package: str) -> None:
    link = ROOT / "mctskernel" / package
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{package}"
    assert (ROOT / package / "__init__.py").is_file()


def test_every_import_is_declared() -> None:
    declared = {
        _canonical(match[0])
        for line in "\n".join(
            [
                SETUP["options"]["install_requires"],
                *(text for extra, text in SETUP["options.extras_require"].items() if extra != "test"),
            ]
        ).splitlines()
        if (match := re.match(r"[\w.-]+", line.strip()))
    }
    distributions = importlib.metadata.packages_distributions()
    missing = {
        f"{file.relative_to(ROOT)}: {name}"
        for folder in ("mctskernel", *PACKAGES)
        for file in (ROOT / folder).rglob("*.py")
        for name in _third_party_imports(file)
        if not declared & {_canonical(each) for each in distributions.get(name, [name])}
    }
    assert not missing


def _third_party_imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "mctskernel":
                yield top


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_files_beside_the_code_are_package_data() -> None:
    patterns = {
        package: [pattern.strip() for pattern in value.split(",")]
        for package, value in SETUP["options.package_data"].items()
    }
    packaged = {
        file
        for package, globs in patterns.items()
        for pattern in globs
        for file in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    data = {
        file
        for folder in ("mctskernel", *(f"mctskernel/{package}" for package in PACKAGES))
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix not in {".py", ".pyc"}
    }
    assert data
    assert data <= packaged
