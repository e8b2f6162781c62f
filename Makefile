# `make search` and `make test` need python3 (3.11 to 3.13, with venv) and nothing else; both work in .venv.
PYTHON ?= python3
BUDGET ?= 200
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest -n auto --dist loadscope

# Tests start hundreds of processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: search test test-all lint types docs wheel clean

search: $(VENV)/installed
	$(BIN)/mctskernel search --budget $(BUDGET)

# Before every commit: a few minutes.
test: lint types
	$(PYTEST) -m "not slow"

# The rest: slow tests, many generated inputs, the documentation.
test-all: docs
	HYPOTHESIS_PROFILE=full $(PYTEST) -m slow

lint: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(VENV)/installed-test
	$(BIN)/mypy

docs: $(VENV)/installed-test
	$(BIN)/sphinx-build -q -W -b html docs build/docs

wheel: $(VENV)/installed-test
	rm -rf build/lib # files that are gone would be packed again
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamps are renewed only when the requirements may have changed.
$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --editable .
	touch $@

$(VENV)/installed-test: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --editable '.[test]'
	touch $(VENV)/installed $@
