"""More files than descriptors: each reads and writes as if it were open all the time."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from penstock.jetstream.store.file import openfiles
from penstock.jetstream.store.file.disk import RealDisk, RealFile
from penstock.jetstream.store.file.openfiles import OpenFiles

OPEN_MAX = 3


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> RealDisk:
    monkeypatch.setattr("penstock.jetstream.store.file.disk.files_max", lambda: OPEN_MAX)
    return RealDisk()


def open_in(directory: Path) -> int:
    """Return how many files of a directory this process has open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    found = [os.readlink(link) for link in links if os.path.islink(link)]
    return sum(each.startswith(str(directory)) for each in found)


def make(disk: RealDisk, directory: Path, count: int) -> list[RealFile]:
    return [disk.create(f"{directory}/{number}") for number in range(count)]


def test_ten_files_take_three_descriptors_and_keep_their_bytes(
    disk: RealDisk, tmp_path: Path
) -> None:
    files = make(disk, tmp_path, 10)
    for round_number in range(3):
        for number, file in enumerate(files):
            file.write(b"%d" % number, round_number)
            file.sync()
            assert open_in(tmp_path) <= OPEN_MAX

    assert [file.read(0, 9) for file in files] == [b"%d" % n * 3 for n in range(10)]
    assert [file.size() for file in files] == [3] * 10
    for file in files:
        file.close()
    assert open_in(tmp_path) == 0


def test_what_is_not_synced_is_synced_before_it_is_closed(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(openfiles, "sync_data", sync)
    files = make(disk, tmp_path, OPEN_MAX)
    for file in files:
        file.write(b"x", 0)
    disk.create(f"{tmp_path}/more")

    assert synced == [f"{tmp_path}/0"]


def test_an_error_of_that_sync_is_told_with_the_next_one(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make(disk, tmp_path, OPEN_MAX)
    for file in files:
        file.write(b"x", 0)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(openfiles, "sync_data", fail)
        disk.create(f"{tmp_path}/more")

    with pytest.raises(OSError, match="Input/output error"):
        files[0].sync()
    files[0].sync()
    files[1].sync()


def test_a_file_that_took_the_place_of_another_is_not_written_to(
    disk: RealDisk, tmp_path: Path
) -> None:
    first = disk.create(f"{tmp_path}/0")
    others = make(disk, tmp_path, OPEN_MAX + 1)[1:]
    assert len(others) == OPEN_MAX
    (tmp_path / "new").write_bytes(b"other")
    disk.rename(f"{tmp_path}/new", f"{tmp_path}/0")

    with pytest.raises(OSError, match=r"[Ss]tale"):
        first.write(b"x", 0)
    assert (tmp_path / "0").read_bytes() == b"other"


def test_threads_share_few_descriptors(tmp_path: Path) -> None:
    files = OpenFiles(OPEN_MAX)
    flags = os.O_RDWR | os.O_CREAT
    made = [files.add(f"{tmp_path}/{number}", flags) for number in range(12)]
    errors: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(2000):
            number = chance.randrange(len(made))
            descriptor = files.acquire(made[number])
            os.pwrite(descriptor, b"%02d" % number, 0)
            if os.pread(descriptor, 2, 0) != b"%02d" % number:
                errors.append(f"{number} by {seed}")
            files.release(made[number])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert [(tmp_path / str(n)).read_bytes() for n in range(12)] == [b"%02d" % n for n in range(12)]
