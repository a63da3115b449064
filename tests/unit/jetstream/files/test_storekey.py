"""The key of an encrypted store: found, replaced, refused; and a store that gets one."""

from __future__ import annotations

import pytest
from tests.simdisk import SimDisk

from penstock.errors import StoreError
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.files import storekey
from penstock.jetstream.files.storekey import COPY_BYTES, NAME, check_unlocked, find_key, unlock
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.disk import Disk
from penstock.jetstream.store.file.encryption import Keys, encrypted, is_encrypted

ROOT = "store/jetstream"
SUBJECT = b"orders.created"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive keys with less work than a server."""
    monkeypatch.setattr(storekey, "SCRYPT_N", 2)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(ROOT)
    return disk


def keyed(disk: SimDisk, key: str, previous: str | None = None) -> Disk:
    keys = Keys("chacha")
    unlock(disk, ROOT, keys, key, previous)
    return encrypted(disk, keys)


def fill(disk: Disk) -> None:
    """Make a stream with a message, and a consumer."""
    files = StreamFiles(disk, "store", "A")
    files.prepare()
    config = StreamConfig(name="ORDERS", subjects=(SUBJECT.decode(),))
    store = files.make(config, 1)
    files.sync_names()
    store.append([(SUBJECT, b"", b"payload", 1)])
    store.close()
    consumer = f"{files.consumers_path('ORDERS')}/C"
    disk.make_directory(consumer)
    for path in (f"{consumer}/consumer.json", f"{files.consumers_path('ORDERS')}/consumers-1.log"):
        file = disk.create(path)
        file.write(SUBJECT, 0)
        file.close()


def held(disk: Disk) -> bytes:
    """Return the payload of the only message."""
    files = StreamFiles(disk, "store", "A")
    store, found = files.open_store(files.read("ORDERS")[0])
    assert found == ([], [])
    message = store.get(1)
    store.close()
    assert message is not None
    return message[4]


def snapshot(disk: SimDisk) -> dict[str, bytes]:
    return {path: bytes(inode.content) for path, inode in disk.names_now.items()}


def test_nothing_of_a_stream_but_its_name_lies_on_the_disk(disk: SimDisk) -> None:
    fill(keyed(disk, "key"))

    for path, content in snapshot(disk).items():
        assert b"orders" not in content, path
        assert b"payload" not in content, path
        assert b"ORDERS" not in content, path


def test_the_same_key_opens_a_store_again(disk: SimDisk) -> None:
    fill(keyed(disk, "key"))

    assert b"payload" == held(keyed(disk, "key"))


@pytest.mark.parametrize("previous", [None, "wrong too"])
def test_another_key_is_refused_and_changes_nothing(disk: SimDisk, previous: str | None) -> None:
    fill(keyed(disk, "key"))
    before = snapshot(disk)

    with pytest.raises(StoreError, match=r"of another `jetstream.key`; hint: "):
        keyed(disk, "wrong", previous)

    assert before == snapshot(disk)


def test_a_previous_key_is_replaced(disk: SimDisk) -> None:
    fill(keyed(disk, "old"))
    before = snapshot(disk)
    assert b"payload" == held(keyed(disk, "new", "old"))
    changed = {path for path, content in snapshot(disk).items() if content != before[path]}

    assert f"{ROOT}/{NAME}" in changed
    assert b"payload" == held(keyed(disk, "new"))
    with pytest.raises(StoreError, match="another"):
        keyed(disk, "old")


def test_a_server_without_a_key_leaves_an_encrypted_store_alone(disk: SimDisk) -> None:
    keyed(disk, "key")

    with pytest.raises(StoreError, match=r"is encrypted; hint: set `jetstream.key`"):
        check_unlocked(disk, ROOT)


def test_a_plain_store_is_encrypted_at_the_start(disk: SimDisk) -> None:
    fill(disk)
    count = len(disk.names_now)
    keys = Keys("aes")

    assert [f"{count} files were not encrypted, and are now"] == unlock(disk, ROOT, keys, "key")
    assert b"payload" == held(encrypted(disk, keys))
    assert all(is_encrypted(disk.open(path)) for path in disk.names_now if NAME not in path)


def test_a_power_cut_while_a_store_is_encrypted_costs_nothing() -> None:
    seeds = range(60)
    cut = 0
    for seed in seeds:
        disk = SimDisk(seed)
        disk.make_directory(ROOT)
        fill(disk)
        for path in disk.names_now:
            disk.open(path).sync()
            disk.sync_directory(path)
        for _ in range(3):
            disk.fault_rate = 0.15
            try:
                keyed(disk, "key")
            except OSError:
                cut += 1
            disk = disk.crash()
        disk.fault_rate = 0

        assert b"payload" == held(keyed(disk, "key"))
    assert cut, "nothing went wrong"


def test_encrypted_files_without_their_key_are_left_alone(disk: SimDisk) -> None:
    fill(keyed(disk, "key"))
    disk.remove(f"{ROOT}/{NAME}")
    before = snapshot(disk)

    with pytest.raises(StoreError, match="is missing; hint: put it back"):
        keyed(disk, "key")

    assert before == snapshot(disk)


@pytest.mark.parametrize("copy", [0, 1])
def test_a_bad_sector_leaves_a_copy_of_the_key(disk: SimDisk, copy: int) -> None:
    fill(keyed(disk, "key"))
    content = disk.names_now[f"{ROOT}/{NAME}"].content
    content[copy * COPY_BYTES : (copy + 1) * COPY_BYTES] = bytes(COPY_BYTES)

    assert b"payload" == held(keyed(disk, "key"))


def test_a_damaged_key_is_told_from_a_wrong_one(disk: SimDisk) -> None:
    keyed(disk, "key")
    disk.names_now[f"{ROOT}/{NAME}"].content[:] = bytes(2 * COPY_BYTES)

    with pytest.raises(StoreError, match="is damaged; hint: put a copy of it in its place"):
        keyed(disk, "key")


def test_looking_for_the_key_changes_nothing(disk: SimDisk) -> None:
    fill(disk)
    keyed(disk, "old")
    before = snapshot(disk)
    keys = Keys("chacha")
    find_key(disk, ROOT, keys, "new", "old")

    assert b"payload" == held(encrypted(disk, keys))
    assert before[f"{ROOT}/{NAME}"] == snapshot(disk)[f"{ROOT}/{NAME}"]
