# Every target makes what it needs on a fresh machine: a Python of 3.11 or later is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: all setup demo test lint types bench-core bench-client fuzz clean

all: lint types test

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The extension is built by pip, and rebuilt when its source changes.
$(STAMP): $(BIN)/python pyproject.toml setup.py src/penstock/_speedups.c
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/penstock demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy --strict src

bench-core: setup
	$(BIN)/python -m benchmarks.core

bench-client: setup
	$(BIN)/python -m benchmarks.client

fuzz: setup
	$(BIN)/python -m tests.fuzz.sanitized --seconds 60

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache benchmarks/bin
	find src -name '*.so' -delete
