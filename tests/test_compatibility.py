"""The page of compatibility: nothing on it that the tests do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.reference.compatibility import (
    CONNECT_OPTIONS,
    OTHER_CONNECT_OPTIONS,
    REFUSED_STATE,
    SIGNALS,
    Section,
    sections,
)
from penstock.core.identity.connect import OPTION_TYPES

ROOT = Path(__file__).parents[1]
SECTIONS = list(sections())


def proofs(section: Section) -> str:
    """Return the text of all tests that a section names."""
    paths = [path for proof in section.proofs for path in sorted(ROOT.glob(proof))]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


@pytest.mark.parametrize(
    "section",
    [section for section in SECTIONS if not section.is_walked],
    ids=lambda section: section.title,
)
def test_each_row_is_in_the_tests_that_prove_it(section: Section) -> None:
    text = proofs(section)

    offered = [name for name, state in section.rows.items() if state != REFUSED_STATE]
    assert [name for name in offered if name.rpartition(".")[2] not in text] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_each_proof_is_there(section: Section) -> None:
    assert [proof for proof in section.proofs if not list(ROOT.glob(proof))] == []


def test_every_option_of_connect_is_listed() -> None:
    assert {*CONNECT_OPTIONS, *OTHER_CONNECT_OPTIONS} == set(OPTION_TYPES)


def test_every_signal_is_handled() -> None:
    source = (ROOT / "src" / "penstock" / "cli" / "serve" / "process.py").read_text()

    assert {name for name in SIGNALS if f"signal.{name}" in source} == set(SIGNALS)
