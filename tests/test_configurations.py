"""Configuration on the pages is read as the programs on them are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.bus.config.loading import load_config
from penstock.config.file.loading import load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:text)?\n([a-z_]+(?: \{|: ).*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(jetstream \{ \w+: [^`…]+\})`")
YAML = re.compile(r"^```yaml\n(eventbus:\n.*?)^```", re.MULTILINE | re.DOTALL)
ABRIDGED = ("…", "...", "eyJ0eXAi")
NEEDS_FILES = ("operator:", "resolver", "auth_callout", "permissions {", "date:", "cert_file")
"""Blocks about keys and certificates that only their reader has, and a part of a user."""

VARIABLES = {"JETSTREAM_KEY": "secret"}


def found(pattern: re.Pattern[str], *, but: tuple[str, ...] = ()) -> list[str]:
    texts = [text for page in PAGES for text in pattern.findall(page.read_text(encoding="utf-8"))]
    return [text for text in texts if not any(word in text for word in (*ABRIDGED, *but))]


@pytest.mark.parametrize("text", [*found(BLOCK, but=NEEDS_FILES), *found(INLINE)])
def test_the_server_reads_what_a_page_shows(text: str, tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(text, encoding="utf-8")

    load(str(tmp_path / "server.conf"), VARIABLES, ())


@pytest.mark.parametrize("text", found(YAML))
def test_the_bus_reads_what_a_page_shows(text: str) -> None:
    load_config(text, environment={})


def test_there_are_such_blocks() -> None:
    assert len(found(BLOCK, but=NEEDS_FILES)) >= 4
    assert found(INLINE)
    assert found(YAML)
