"""Phrases that a reader has to decode stay out of docstrings, comments, messages and pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
PHRASES = {
    "[Cc]an not": "cannot",
    "[Ss]top to ": "stop …ing, or pause in order to …",
    "(?<!here )is none\\b": "is not one, or is missing",
    "so many\\b": "the number of",
    "that which\\b": "the name of the thing",
    "[Tt]wice is once": "idempotent",
}
"""A pattern to avoid → what to write."""
RIDDLES = re.compile(r"(Who|What|Whom|Whose)\b(?!.*\?)")
"""A docstring that starts like this names its thing by a clause instead of a noun."""
NATS_SERVER = ("can not unmarshal ",)
"""Texts of nats-server, which clients match."""
ERRORS_OF_NATS_SERVER = ("errorcodes.py", "rules.py", "consumerrules.py")
"""Modules whose error texts are those of nats-server."""
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    if "reference" not in page.parts
)


def findings(text: str) -> list[str]:
    """Return the phrases in a text."""
    for quoted in NATS_SERVER:
        text = text.replace(quoted, "")
    text = re.sub(r"\s+(# )?", " ", text)
    return [found for phrase in PHRASES for found in re.findall(phrase, text)]


def spoken(path: Path) -> Iterator[str]:
    """Yield the comments and strings of a module; of a file in C, its comments."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL)
        return
    wanted = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in wanted:
            yield token.string


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, those of attributes too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.value.value.strip()


def found_in(path: Path) -> list[str]:
    """Return what is to be rewritten in one file."""
    found = [phrase for text in spoken(path) for phrase in findings(text)]
    if path.name in ERRORS_OF_NATS_SERVER:
        found = [phrase for phrase in found if phrase not in {"can not", "is none"}]
    if path.suffix == ".py":
        found += [text[:60] for text in docstrings(path) if RIDDLES.match(text)]
    return found


def test_the_source_has_none_of_the_phrases() -> None:
    paths = [path for suffix in ("py", "c", "h") for path in sorted(SOURCE.rglob(f"*.{suffix}"))]
    found = {str(path): found_in(path) for path in paths}

    assert {} == {path: phrases for path, phrases in found.items() if phrases}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_phrases(page: Path) -> None:
    assert [] == findings(page.read_text())


def test_a_phrase_is_found_over_line_ends_and_as_a_riddle(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Who decides."""\n\n# It can\n# be so\n# many.\nx = "it can not be"\n')

    assert ["can not", "Who decides."] == found_in(module)
    assert ["so many"] == findings("# be so\n# many")
