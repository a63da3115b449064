# Every target makes what it needs on a fresh machine: a Python of 3.11 or later is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
REFERENCE := commands compatibility configuration
STAMP  := $(VENV)/.installed

# Where an image turns byte code off, every server that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help all pictures setup demo test test-again test-pure coverage coverage-raise lint format types docs docs-check site build release fuzz nightly clean constraints
.PHONY: bench bench-core bench-jetstream bench-fairness bench-client bench-bus bench-kafka bench-spark bench-twins bench-creation bench-sizes

# The first target is the default.
all: lint types docs-check test  ## what has to pass

help:  ## this list
	@awk -F ':.*## ' '/^[a-z][a-z -]*:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## a virtual environment with everything in it

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The extension is built by pip, and rebuilt when its source changes.
$(STAMP): $(BIN)/python pyproject.toml setup.py $(wildcard src/penstock/hot/native/*.[ch])
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: setup  ## the whole story on this machine, in a minute or two
	$(BIN)/penstock demo

# Four files at a time, also on two cores: most tests wait for a server or a disk.
test: setup  ## the tests, four files at a time
	$(BIN)/python -m pytest -n 4 --dist loadfile

# A busy machine can break a test once; a defect breaks it again.
test-again: setup  ## the tests that failed in the last run, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none --maxfail=1

# The servers and their parts once more without the compiled twins.
test-pure: setup  ## the unit tests of the core in pure Python
	PENSTOCK_PURE=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile tests/unit/core tests/unit/hot \
		tests/unit/protocol tests/unit/jetstream tests/unit/client

# A floor for each module; what the servers and engines of other tests reach does not count.
coverage: setup  ## lines and branches that the unit tests reach, held to a floor per module
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --cov=penstock --cov-branch \
		--cov-report=term:skip-covered --cov-report=html --cov-report=json tests/unit
	$(BIN)/python -m tests.floors coverage.json

coverage-raise: setup  ## raise the floors to what `make coverage` has measured
	$(BIN)/python -m tests.floors coverage.json --raise

format: setup  ## lay the code out
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup  ## layout and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup  ## mypy, strict, and the stub of the compiled twins
	$(BIN)/mypy --strict src
	$(BIN)/stubtest penstock.hot._speedups

# What the reference says comes from the code; the tests fail when it is stale.
docs: setup  ## write the reference pages from the code
	for page in $(REFERENCE); do $(BIN)/penstock reference $$page > docs/reference/$$page.md; done
	$(BIN)/python -m penstock.bus.config.reference > docs/reference/eventbus.md

pictures: setup  ## take the pictures of the console that the documentation shows
	CONSOLE_PICTURES=docs/images $(BIN)/python -m pytest -q tests/console

docs-check: setup  ## fail where a reference page is stale
	@for page in $(REFERENCE); do \
		$(BIN)/penstock reference $$page | diff -u docs/reference/$$page.md - || exit 1; done
	@$(BIN)/python -m penstock.bus.config.reference | diff -u docs/reference/eventbus.md -

site: setup  ## the documentation as a site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

build: setup  ## a wheel and a source archive in dist/
	$(BIN)/python -m build

# Pushing the tag has the release workflow build every platform's wheel and publish them.
release: setup  ## build, check and tag the version of src/penstock/protocol/version.py
	$(BIN)/python contrib/release.py

bench: setup  ## servers side by side, on a page
	$(BIN)/penstock bench compare

# Each prints a table of ratios to its peer, measured in turns in one run.
bench-core bench-jetstream bench-fairness bench-client bench-bus bench-kafka bench-twins bench-creation bench-sizes: setup
	$(BIN)/python -m benchmarks.$(@:bench-%=%)

bench-spark: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark,kafka]'
	$(BIN)/python -m benchmarks.spark

# The long forms of the fault suites: some hours.
nightly: setup  ## the long forms of the fault suites: some hours
	KILL_ROUNDS=300 POWER_ROUNDS=5000 REFUSED_SEEDS=500 RETREAT_SEEDS=1000 SOAK_SECONDS=600 \
		$(BIN)/python -m pytest --timeout=3600 \
		tests/faults/test_jetstream_kill.py tests/faults/test_copies_kill.py \
		tests/faults/test_jetstream_power.py \
		tests/faults/test_jetstream_soak.py tests/faults/test_refused.py \
		tests/faults/test_store_faults.py
	LEDGER_SECONDS=3600 $(BIN)/python -m pytest --timeout=9000 tests/faults/test_bus_ledger.py \
		-k 'not (nats or cluster or kafka)'
	LEDGER_SECONDS=600 $(BIN)/python -m pytest --timeout=9000 tests/faults/test_bus_ledger.py \
		-k 'nats or cluster or kafka'
	DESCRIPTOR_STREAMS=10000 DESCRIPTORS=1024 TEST_TIMEOUT_S=3600 START_S=600 \
		$(BIN)/python -m pytest --timeout=3600 tests/faults/test_descriptors.py
	SPARK_ROUNDS=5 SPARK_BATCHES=1000 $(BIN)/python -m pytest --timeout=3600 \
		tests/spark/test_exactly_once.py tests/spark/test_many_batches.py \
		tests/spark/test_declarative.py
	SPARK_LEDGER_ROUNDS=5 $(BIN)/python -m pytest -rP --timeout=7200 tests/spark/test_ledger.py

# The versions of all that the extras need, with the hashes of their files.
constraints: setup  ## pin the versions of the extras, with hashes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	sed -n '/^#/p' constraints/extras.txt > constraints/header.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--extra all --no-emit-package penstock --no-header --no-annotate \
		--output-file constraints/pins.txt pyproject.toml
	cat constraints/header.txt constraints/pins.txt > constraints/extras.txt
	rm constraints/header.txt constraints/pins.txt

fuzz: setup  ## the C twins under sanitizers
	$(BIN)/python -m tests.fuzz.sanitized --seconds 60

clean:  ## remove what was built
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache benchmarks/bin
	find src -name '*.so' -delete
