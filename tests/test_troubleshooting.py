"""Every warning and error that the server logs has its line on the page for operators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"
PARTS = ("net", "core", "jetstream", "config", "cli/serve")
PAGE = ROOT / "docs" / "operate" / "troubleshooting.md"
PLACEHOLDER = re.compile(r"[`']?%[.0-9]*[srd][`']?")


def log_lines() -> Iterator[str]:
    """Yield the format of everything that is logged as a warning or worse."""
    for part in PARTS:
        for path in sorted((SOURCE / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(
                            value=ast.Name(id="log" | "logger"),
                            attr="warning" | "error" | "critical" | "exception",
                        ),
                        args=[ast.Constant(value=str(text)), *_],
                    ):
                        yield text


def plain(text: str) -> str:
    """Return a text without quotes, with one sign for whatever is filled in."""
    return re.sub(r"[`']", "", PLACEHOLDER.sub("…", text))


def test_every_line_of_the_log_is_explained() -> None:
    page = plain(PAGE.read_text(encoding="utf-8"))
    formats = {plain(text) for text in log_lines()}
    unexplained = sorted(text for text in formats if text != "…" and text not in page)

    assert len(formats) > 60
    assert unexplained == []
