"""The compatibility page: every row names a test that there is, and none that is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import HELD

from penstock.cli.reference.compatibility import (
    CONNECT_OPTIONS,
    OTHER_CONNECT_OPTIONS,
    SIGNALS,
    Section,
    sections,
)
from penstock.cli.reference.proofs import PROOFS
from penstock.core.identity.connect import OPTION_TYPES

ROOT = Path(__file__).parents[1]
SECTIONS = list(sections())


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """Return the tests of all files that the page names, as pytest collects them."""
    files = sorted({f"tests/{test.partition('::')[0]}" for test in HELD})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    without = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [*command, *files, "-n", "0", "-o", "addopts=--import-mode=importlib", "--no-header"],
        cwd=ROOT,
        env=without,
        capture_output=True,
        text=True,
        check=True,
    )
    tests = [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]
    return {*tests, *(test.partition("[")[0] for test in tests)}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_each_row_names_a_test_that_there_is(section: Section, collected: set[str]) -> None:
    assert [name for name in section.rows if section.tests.get(name) not in collected] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_no_test_is_named_for_a_row_that_is_not_there(section: Section) -> None:
    assert section.tests.keys() - section.rows.keys() == set()


def test_no_tests_are_named_for_a_section_that_is_not_there() -> None:
    assert PROOFS.keys() <= {section.title for section in SECTIONS}


def test_every_option_of_connect_is_listed() -> None:
    assert {*CONNECT_OPTIONS, *OTHER_CONNECT_OPTIONS} == set(OPTION_TYPES)


def test_every_signal_is_handled() -> None:
    source = (ROOT / "src" / "penstock" / "cli" / "serve" / "process.py").read_text()

    assert {name for name in SIGNALS if f"signal.{name}" in source} == set(SIGNALS)
