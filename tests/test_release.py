"""What keeps a version from being released."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import penstock

ROOT = Path(__file__).parent.parent
CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-31\n\n- Something.\n"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "contrib" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit that could be released."""
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> None:
    settings = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", str(root), *settings, *words], check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Change")


def test_the_version_is_read_without_importing_it(release: ModuleType) -> None:
    assert release.read_version(ROOT) == penstock.__version__


def test_a_version_with_its_section_is_ready(release: ModuleType, repository: Path) -> None:
    assert release.find_problem(repository, "1.2.3") == ""


def test_changes_that_are_not_committed_are_refused(release: ModuleType, repository: Path) -> None:
    (repository / "new").write_text("")

    assert "commit" in release.find_problem(repository, "1.2.3")


def test_a_version_is_tagged_once(release: ModuleType, repository: Path) -> None:
    git(repository, "tag", "--annotate", "v1.2.3", "--message", "Penstock 1.2.3")

    assert "tagged already" in release.find_problem(repository, "1.2.3")


def test_a_version_needs_a_section_with_a_date(release: ModuleType, repository: Path) -> None:
    assert "no section" in release.find_problem(repository, "1.2.4")


def test_no_entry_is_left_behind(release: ModuleType, repository: Path) -> None:
    text = CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- Left behind.\n")
    (repository / "CHANGELOG.md").write_text(text)
    commit(repository)

    assert "Unreleased" in release.find_problem(repository, "1.2.3")
