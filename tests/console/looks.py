"""What a picture would show to a person: text that leaves its place, and text that is too pale."""

from __future__ import annotations

from pathlib import Path

from tests.chromium import Chromium

LOOKS = Path(__file__).with_name("looks.js").read_text()
"""An expression with a function for each."""


def problems(page: Chromium) -> list[str]:
    """Return what is wrong with a page as it is shown now."""
    found: list[str] = page.run(
        f"(() => {{ const looks = {LOOKS};"
        " return [...looks.outside(), ...looks.pale(), ...looks.nameless()]; })()"
    )
    return found
