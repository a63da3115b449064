"""What the extras bring along: pinned, by the hash of each file, from wherever one gets it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
PINS = ROOT / "constraints" / "extras.txt"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@pytest.fixture(scope="module")
def pins() -> dict[str, list[str]]:
    """Return each package with the lines that pin it, and what follows on them."""
    text = "\n".join(line for line in PINS.read_text().splitlines() if not line.startswith("#"))
    found: dict[str, list[str]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        words = entry.split(" --hash=", 1)
        if entry.strip():
            name = canonicalize_name(Requirement(words[0]).name)
            found.setdefault(name, []).append(entry)
    return found


def test_every_pin_is_one_version_with_hashes_and_nothing_else(pins: dict[str, list[str]]) -> None:
    for entries in pins.values():
        for entry in entries:
            requirement, *hashes = re.split(r"\s+(?=--hash=)", entry.strip())
            assert re.fullmatch(r"==[^,*]+", str(Requirement(requirement).specifier)), entry[:80]
            assert hashes, entry[:80]
            assert all(HASH.fullmatch(each) for each in hashes), entry[:80]


def test_every_extra_is_covered_by_a_version_that_it_takes(pins: dict[str, list[str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra in set(extras) - {"dev"}:
        for requirement in map(Requirement, extras[extra]):
            if requirement.name == project["name"]:
                continue
            entries = pins[canonicalize_name(requirement.name)]
            for entry in entries:
                pinned = Requirement(re.split(r"\s+--hash=", entry)[0])
                [version] = [each.version for each in pinned.specifier]
                assert requirement.specifier.contains(version), (extra, entry[:80])


def test_no_place_to_get_them_from_is_named() -> None:
    text = PINS.read_text()

    assert "://" not in text
    assert not re.search(r"^\s*(-i|--index|--extra-index|--find-links|--trusted)", text, re.M)
