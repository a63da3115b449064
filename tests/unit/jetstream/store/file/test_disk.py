"""The real disk, and the simulated one beside it: the same calls do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simdisk import SimDisk

from penstock.errors import StoreError
from penstock.jetstream.store.file.disk import Disk, RealDisk, read_whole, write_whole


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    disk: Disk = RealDisk() if request.param == "real" else SimDisk()
    directory = f"{tmp_path}/a/b"
    disk.make_directory(directory)
    disk.make_directory(directory)
    return disk, directory


def test_files_keep_what_is_written(place: tuple[Disk, str]) -> None:
    disk, directory = place
    file = disk.create(f"{directory}/one")
    file.write(b"hello", 0)
    file.write(b"world", 7)
    file.sync()
    assert file.read(0, 100) == b"hello\0\0world"
    assert file.read(7, 3) == b"wor"
    assert file.read(50, 3) == b""
    file.truncate(5)
    assert file.size() == 5
    file.close()
    disk.sync_directory(directory)
    assert disk.names(directory) == ["one"]
    assert read_whole(disk, f"{directory}/one") == b"hello"


def test_a_new_file_is_empty_whatever_was_there(place: tuple[Disk, str]) -> None:
    disk, directory = place
    write_whole(disk, f"{directory}/one", b"old")
    file = disk.create(f"{directory}/one")
    assert file.size() == 0
    file.close()


def test_names_can_change_and_go(place: tuple[Disk, str]) -> None:
    disk, directory = place
    write_whole(disk, f"{directory}/one", b"1")
    write_whole(disk, f"{directory}/two", b"2")
    disk.rename(f"{directory}/one", f"{directory}/two")
    assert disk.names(directory) == ["two"]
    assert read_whole(disk, f"{directory}/two") == b"1"
    disk.remove(f"{directory}/two")
    disk.remove(f"{directory}/two")
    assert disk.names(directory) == []
    assert read_whole(disk, f"{directory}/two") is None
    with pytest.raises(FileNotFoundError):
        disk.open(f"{directory}/two")


def test_a_directory_goes_with_everything_in_it(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.make_directory(f"{directory}/c")
    write_whole(disk, f"{directory}/c/one", b"1")
    disk.remove_directory(directory)
    disk.remove_directory(directory)
    assert disk.names(directory) == []


def test_a_directory_that_is_not_there_has_no_names(place: tuple[Disk, str]) -> None:
    disk, directory = place
    assert disk.names(f"{directory}/none") == []


def test_a_directory_is_locked_by_one_at_a_time(place: tuple[Disk, str]) -> None:
    disk, directory = place
    lock = disk.lock(directory)
    with pytest.raises(StoreError, match="is in use"):
        disk.lock(directory)
    lock.release()
    disk.lock(directory).release()


def test_another_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    lock = RealDisk().lock(str(tmp_path))
    code = (
        "import sys\n"
        "from penstock.jetstream.store.file.disk import RealDisk\n"
        "RealDisk().lock(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert done.returncode == 1
    assert f"in use by process {os.getpid()}" in done.stderr
    assert "hint:" in done.stderr
    lock.release()
