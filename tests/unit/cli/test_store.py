"""`penstock store` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.store import run
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.disk import RealDisk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    files = StreamFiles(RealDisk(), str(tmp_path), "A")
    config = StreamConfig(name="ORDERS", subjects=("a",))
    files.prepare()
    store = files.make(config, 1)
    store.append([(b"a", b"", b"one", 1), (b"a", b"", b"two", 2)])
    store.close()
    (tmp_path / "jetstream" / "LOCK").touch()
    return tmp_path


def test_a_sound_store_checks_out(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(directory)]) == 0
    assert "Everything checks out." in capsys.readouterr().out


def test_figures_are_there_for_scripts(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(directory), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["last_sequence"], report["problems"]) == (2, 2, [])


def test_damage_is_explained_and_repaired(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = directory.rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"one")] ^= 1
    segment.write_bytes(data)
    assert run(["check", str(directory)]) == 1
    assert "are damaged" in capsys.readouterr().out
    assert run(["repair", str(directory)]) == 0
    assert "1 messages saved" in capsys.readouterr().out
    assert run(["repair", str(directory)]) == 0
    assert "Nothing had to be repaired." in capsys.readouterr().out


def test_the_files_of_a_running_server_are_left_alone(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = RealDisk().lock(str(directory / "jetstream"))
    for path in (directory, directory / "jetstream" / "A"):
        assert run(["repair", str(path)]) == 1
        assert "is in use by process" in capsys.readouterr().err
    lock.release()


def test_a_directory_without_a_store_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(tmp_path)]) == 1
    assert "there is no store" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["check"], ["mend", "x"], ["check", "x", "--bogus"]])
def test_what_makes_no_sense_names_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert "hint: penstock store " in capsys.readouterr().err


def test_help_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "Usage:" in capsys.readouterr().out
