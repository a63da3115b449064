"""
`make release`: build, check and tag the version that the source names.

Nothing leaves this machine. Pushing the tag has the release workflow build the wheels of
every platform and publish them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION_FILE = "src/penstock/protocol/version.py"


def main() -> None:
    """Refuse what is not ready; then build, check and tag."""
    version = read_version(ROOT)
    if problem := find_problem(ROOT, version):
        sys.exit(f"not released: {problem}")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build")
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, (ROOT / "dist").iterdir()))
    run("git", "tag", "--annotate", f"v{version}", "--message", f"Penstock {version}")
    print(f"tagged v{version}; publish it with `git push origin v{version}`")


def read_version(root: Path) -> str:
    """Return the version of the source."""
    found = re.search(r'^VERSION = "(.+)"$', (root / VERSION_FILE).read_text(), re.MULTILINE)
    assert found is not None, VERSION_FILE
    return found[1]


def find_problem(root: Path, version: str) -> str:
    """Return why this version cannot be released; empty if it can."""
    if git(root, "status", "--porcelain"):
        return "the work tree has changes; commit them first"
    if git(root, "tag", "--list", f"v{version}"):
        return f"v{version} is tagged already; raise VERSION in {VERSION_FILE}"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no section `## {version} - YYYY-MM-DD`"
    unreleased = re.search(r"^## Unreleased\n(.*?)^## ", changelog, re.MULTILINE | re.DOTALL)
    if unreleased and unreleased[1].strip():
        return f"CHANGELOG.md has entries under `Unreleased`; move them to {version}"
    return ""


def git(root: Path, *words: str) -> str:
    """Return what git prints."""
    return subprocess.run(
        ["git", "-C", str(root), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def run(*words: str) -> None:
    """Run a program in the repository, and stop if it fails."""
    subprocess.run(words, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
