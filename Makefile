# Every target makes what it needs on a fresh machine: a Python of 3.11 or later is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
REFERENCE := commands compatibility configuration
STAMP  := $(VENV)/.installed

.PHONY: all setup demo test lint types docs fuzz nightly clean constraints
.PHONY: bench bench-core bench-jetstream bench-fairness bench-client bench-bus bench-kafka bench-spark

all: lint types docs test

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The extension is built by pip, and rebuilt when its source changes.
$(STAMP): $(BIN)/python pyproject.toml setup.py $(wildcard src/penstock/hot/native/*.[ch])
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/penstock demo

# Two files at a time: most tests wait for a server or a disk.
test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy --strict src

# What the reference says comes from the code; the tests fail when it is stale.
docs: setup
	for page in $(REFERENCE); do $(BIN)/penstock reference $$page > docs/reference/$$page.md; done
	$(BIN)/python -m penstock.bus.config.reference > docs/reference/eventbus.md

bench: setup
	$(BIN)/penstock bench compare

# Each prints a table of ratios to its peer, measured in turns in one run.
bench-core bench-jetstream bench-fairness bench-client bench-bus bench-kafka: setup
	$(BIN)/python -m benchmarks.$(@:bench-%=%)

bench-spark: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark,kafka]'
	$(BIN)/python -m benchmarks.spark

# The long forms of the fault suites: an hour or so.
nightly: setup
	KILL_ROUNDS=300 POWER_ROUNDS=5000 SOAK_SECONDS=600 $(BIN)/python -m pytest --timeout=3600 \
		tests/faults/test_jetstream_kill.py tests/faults/test_jetstream_power.py \
		tests/faults/test_jetstream_soak.py
	LEDGER_SECONDS=3600 $(BIN)/python -m pytest --timeout=7200 tests/faults/test_bus_ledger.py
	DESCRIPTOR_STREAMS=10000 DESCRIPTORS=1024 TEST_TIMEOUT_S=3600 $(BIN)/python -m pytest \
		--timeout=3600 tests/faults/test_descriptors.py
	SPARK_ROUNDS=5 SPARK_BATCHES=1000 $(BIN)/python -m pytest --timeout=3600 \
		tests/spark/test_exactly_once.py tests/spark/test_many_batches.py \
		tests/spark/test_declarative.py

# The versions of all that the extras need, with the hashes of their files.
constraints: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	sed -n '/^#/p' constraints/extras.txt > constraints/header.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--extra all --no-emit-package penstock --no-header --no-annotate \
		--output-file constraints/pins.txt pyproject.toml
	cat constraints/header.txt constraints/pins.txt > constraints/extras.txt
	rm constraints/header.txt constraints/pins.txt

fuzz: setup
	$(BIN)/python -m tests.fuzz.sanitized --seconds 60

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache benchmarks/bin
	find src -name '*.so' -delete
