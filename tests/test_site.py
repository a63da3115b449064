"""The documentation as a site: every link leads somewhere, every public name is on a page."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "reference" / "api"
REPOSITORY = "https://github.com/penstock/penstock/blob/main/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; `strict` in mkdocs.yml makes a broken link an error."""
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def names_on(site: Path) -> set[str]:
    """Return the names that the site's inventory lists."""
    content = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(content.split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines}


@pytest.mark.parametrize(
    "package", ["penstock", "penstock.client", "penstock.bus", "penstock.spark"]
)
def test_every_public_name_is_on_a_page(site: Path, package: str) -> None:
    module = importlib.import_module(package)
    public = (getattr(module, name) for name in module.__all__ if not name.startswith("__"))
    missing = {f"{one.__module__}.{one.__qualname__}" for one in public} - names_on(site)

    assert missing == set()


def test_every_page_is_there(site: Path) -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "README.md"]
    missing = [
        path.name
        for path in pages
        if not (site / path.relative_to(ROOT / "docs").with_suffix("") / "index.html").exists()
    ]

    assert missing == []


def test_what_is_not_on_the_site_is_linked_in_the_repository(site: Path) -> None:
    page = (site / "guides" / "securing" / "index.html").read_text(encoding="utf-8")

    assert f'href="{REPOSITORY}SECURITY.md"' in page


def test_a_page_needs_no_other_host(site: Path) -> None:
    loaded = ('<script src="http', '<link rel="stylesheet" href="http', "fonts.googleapis")
    found = [
        (path.name, text)
        for path in site.rglob("*.html")
        for text in loaded
        if text in path.read_text(encoding="utf-8")
    ]

    assert found == []
