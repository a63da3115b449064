"""The threat model names every test of a boundary, and every test has its boundary."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "docs" / "internals" / "threat-model.md"
OURSELVES = Path(__file__).name


def test_every_boundary_has_tests_that_exist_and_every_test_has_a_boundary() -> None:
    """Whoever adds a file here says in docs/internals/threat-model.md which boundary it holds."""
    named = set(re.findall(r"\.\./\.\./tests/security/(test_\w+\.py)", MODEL.read_text()))
    existing = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {OURSELVES}

    assert existing == named


def test_every_boundary_names_what_holds_it() -> None:
    boundaries = re.split(r"^## ", MODEL.read_text(), flags=re.MULTILINE)[1:]

    assert len(boundaries) >= 7
    assert all("tests/security/test_" in boundary for boundary in boundaries)


def test_links_of_the_security_pages_lead_somewhere() -> None:
    for page in (ROOT / "SECURITY.md", ROOT / "docs" / "guides" / "securing.md", MODEL):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_pages_are_found_from_the_front_page() -> None:
    front, index = (ROOT / "README.md").read_text(), (ROOT / "docs" / "README.md").read_text()

    assert "SECURITY.md" in front
    assert "guides/securing.md" in front
    assert "guides/securing.md" in index
    assert "internals/threat-model.md" in index
