"""The reference is what the code says: regenerate it with `penstock reference PAGE`."""

from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS
from penstock.cli.reference import PAGES

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_reference_is_fresh(page):
    assert PAGES[page]() == (REFERENCE / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_documented(name):
    assert f"## `penstock {name}`" in (REFERENCE / "commands.md").read_text(encoding="utf-8")
