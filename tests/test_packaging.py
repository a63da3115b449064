"""What is shipped: a wheel with the compiled part, and a source that needs no compiler."""

from __future__ import annotations

import email
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parent.parent
DYNAMIC, FLAGS_1, NOW = 6, 0x6FFFFFFB, 1
IMPORT = "from penstock import hot; import penstock; print(hot.COMPILED, penstock.__version__)"


def call(*words: str | Path, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both, from a copy: what lies about in the work tree must not help."""
    home = tmp_path_factory.mktemp("packaging")
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    source = home / "source"
    source.mkdir()
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    call("-m", "build", "--outdir", home / "dist", source)
    return home / "dist"


def run_from(wheel: Path, directory: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return call("-c", IMPORT, PYTHONPATH=str(directory))


def test_the_wheel_brings_the_compiled_part(shipped: Path, tmp_path: Path) -> None:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler on this machine")
    (wheel,) = shipped.glob("*.whl")

    assert "abi3" in wheel.name
    assert run_from(wheel, tmp_path).startswith("True ")


def test_the_compiled_part_is_hardened(shipped: Path, tmp_path: Path) -> None:
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("other linkers have other names for it")
    (wheel,) = shipped.glob("*.whl")
    run_from(wheel, tmp_path)
    (library,) = (tmp_path / "penstock" / "hot").glob("_speedups*.so")

    assert b"__stack_chk_fail" in library.read_bytes()
    assert binds_at_once(library.read_bytes())


def test_the_description_leads_somewhere_from_an_index(shipped: Path) -> None:
    (wheel,) = shipped.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    description = metadata.get_payload()
    links = re.findall(r"\]\(([^)]+)\)", description) + re.findall(r'src="([^"]+)"', description)

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert {"Source", "Documentation", "Changelog", "Issues"} == {
        url.split(",")[0] for url in metadata.get_all("Project-URL")
    }


def binds_at_once(elf: bytes) -> bool:
    """Tell whether a library of 64 bits has DF_1_NOW: no pointer to a function stays writable."""
    (section_offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    for index in range(count):
        section = struct.unpack_from("<IIQQQQIIQQ", elf, section_offset + index * size)
        if section[1] == DYNAMIC:
            entries = struct.iter_unpack("<qQ", elf[section[4] : section[4] + section[5]])
            return any(tag == FLAGS_1 and value & NOW for tag, value in entries)
    return False


def test_a_compiler_that_knows_no_hardening_still_builds_it(shipped: Path, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler on this machine")
    compiler = tmp_path / "cc"
    # Without optimising, because only whether it builds matters here.
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *protector*|*FORTIFY*|*relro*|*noexecstack*) exit 1;; esac\n'
        'exec cc "$@" -O0\n'
    )
    compiler.chmod(0o755)
    (source,) = shipped.glob("*.tar.gz")
    call("-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source, CC=str(compiler))
    (wheel,) = tmp_path.glob("*.whl")

    assert run_from(wheel, tmp_path / "unpacked").startswith("True ")


def test_the_source_installs_without_a_compiler(shipped: Path, tmp_path: Path) -> None:
    (source,) = shipped.glob("*.tar.gz")
    call("-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source, CC="false")
    (wheel,) = tmp_path.glob("*.whl")

    assert run_from(wheel, tmp_path / "unpacked").startswith("False ")


def test_a_bare_install_leaves_the_tests_of_other_projects_alone(
    shipped: Path, tmp_path: Path
) -> None:
    (wheel,) = shipped.glob("*.whl")
    environment = tmp_path / "environment"
    call("-m", "venv", environment)
    python = environment / "bin" / "python"
    (tmp_path / "test_empty.py").write_text("def test_nothing():\n    pass\n")
    for words in (("pip", "install", "-q", wheel, "pytest"), ("pytest", "-q", tmp_path)):
        ended = subprocess.run(
            [python, "-m", *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert 0 == ended.returncode, ended.stdout + ended.stderr

    assert "1 passed" in ended.stdout
