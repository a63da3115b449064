"""The reference is what the code says: regenerate it with `penstock reference PAGE`."""

import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.arguments import find_verb, parse
from penstock.cli.commands import COMMANDS, path_of, verbs_of
from penstock.cli.reference.reference import PAGES

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:\$ )?penstock ([a-z].*)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_reference_is_fresh(page):
    assert PAGES[page]() == (REFERENCE / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_documented(name):
    assert f"## `penstock {name}`" in (REFERENCE / "commands.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_are_understood(page):
    if page.parent == REFERENCE:
        return  # They are shown as patterns there.
    for line in COMMAND.findall(page.read_text(encoding="utf-8")):
        command, *words = shlex.split(re.split(r" [|>&]", line)[0], comments=True)
        assert command in COMMANDS
        verbs = verbs_of(command)
        if verbs and path_of(command, verbs[0]) == command:
            parse(verbs[0], words)
        elif verbs:
            parse(find_verb(command, verbs, words[0]), words[1:])
