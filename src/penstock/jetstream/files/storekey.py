"""
The key of an encrypted store: `<store_dir>/jetstream/@KEY`.

The files are encrypted with a random key. `@KEY` holds that key, encrypted with one that scrypt
derives from `jetstream.key`, so that another `jetstream.key` needs no file written again but this
one. Without `@KEY` the store cannot be read, so it is there twice, far enough apart that no bad
sector takes both:

    magic · version · state · salt · nonce · encrypted key and tag · checksum, at 0 and at 4096

A store with messages that are not encrypted is taken over at the start: each of its files is
written again, encrypted, in the place of itself. The state says when that is done; a server that
is killed meanwhile goes on with it at its next start.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from hashlib import scrypt
from zlib import crc32

from penstock.errors import StoreError
from penstock.jetstream.files.streamfiles import DELETED
from penstock.jetstream.store.file.disk import LOCK, Disk, read_whole, write_whole
from penstock.jetstream.store.file.encryption import (
    AES,
    KEY_BYTES,
    NONCE_BYTES,
    SALT_BYTES,
    TAG_BYTES,
    Keys,
    aead,
    encrypted,
    is_encrypted,
    opened,
)

NAME = "@KEY"
"""No directory of an account is called so: an `@` in its name is written `%40`."""
DRAFT = ".tmp"
MAGIC = b"PENSTKEY"
VERSION = 1
TAKING_OVER, COMPLETE = 1, 2
COPY_BYTES = 4096
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 14, 8, 1
SCRYPT_BYTES_MAX = 64 * 1024 * 1024

_HEAD = struct.Struct(f"<8sHH{SALT_BYTES}s{NONCE_BYTES}s")
_CHECKSUM = struct.Struct("<I")
RECORD_BYTES = _HEAD.size + KEY_BYTES + TAG_BYTES + _CHECKSUM.size


def unlock(disk: Disk, root: str, keys: Keys, key: str, previous: str | None = None) -> list[str]:
    """
    Find the key of a store, or make one, and encrypt what is not; return notes for the log.

    `root` is the directory with `@KEY`, and locked. With another key than the store's it raises
    StoreError, and has changed nothing.
    """
    notes = []
    path = f"{root}/{NAME}"
    if is_keyed(disk, root):
        is_current, state = _find(disk, root, keys, key, previous)
        if not is_current:
            write_whole(disk, path, _encode(key, keys.secret, state))
            notes.append("the store has the new `jetstream.key` now: remove `prev_key`")
    else:
        _check_plain(disk, root)
        keys.secret, state = os.urandom(KEY_BYTES), TAKING_OVER
        write_whole(disk, path, _encode(key, keys.secret, state))
    if state != COMPLETE:
        count = _take_over(disk, root, keys)
        write_whole(disk, path, _encode(key, keys.secret, COMPLETE))
        if count:
            notes.append(f"{count} files were not encrypted, and are now")
    return notes


def find_key(disk: Disk, root: str, keys: Keys, key: str, previous: str | None = None) -> None:
    """Find the key of an encrypted store, and change nothing; raise StoreError."""
    _, state = _find(disk, root, keys, key, previous)
    if state != COMPLETE:
        raise StoreError(f"`{root}` is encrypted only in part; hint: start the server once")


def _find(disk: Disk, root: str, keys: Keys, key: str, previous: str | None) -> tuple[bool, int]:
    """Find the key; return whether it has the new `jetstream.key`, and the state."""
    path = f"{root}/{NAME}"
    record = _readable(path, read_whole(disk, path) or b"")
    for each in (key, previous):
        found = _decode(record, each) if each else None
        if found is not None:
            keys.secret, state = found
            return each == key, state
    hint = "neither `key` nor `prev_key` is right"
    if not previous:
        hint = "set the right one; if it is to change, set the old one as `prev_key`"
    raise StoreError(f"`{path}` is of another `jetstream.key`; hint: {hint}")


def is_keyed(disk: Disk, root: str) -> bool:
    """Tell whether a store is encrypted."""
    return NAME in disk.names(root)


def check_unlocked(disk: Disk, root: str) -> None:
    """Raise StoreError if a store is encrypted: the server has no key."""
    if is_keyed(disk, root):
        raise StoreError(f"`{root}` is encrypted; hint: set `jetstream.key`")


def _encode(key: str, secret: bytes, state: int) -> bytes:
    head = _HEAD.pack(MAGIC, VERSION, state, os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES))
    *_, salt, nonce = _HEAD.unpack(head)
    body = head + aead(AES, _derived(key, salt)).encrypt(nonce, secret, head)
    return (body + _CHECKSUM.pack(crc32(body))).ljust(COPY_BYTES, b"\0") * 2


def _readable(path: str, content: bytes) -> bytes:
    """Return the first copy that checks out."""
    for at in (0, COPY_BYTES):
        record = content[at : at + RECORD_BYTES]
        body, checksum = record[: -_CHECKSUM.size], record[-_CHECKSUM.size :]
        if len(record) == RECORD_BYTES and checksum == _CHECKSUM.pack(crc32(body)):
            if _HEAD.unpack_from(body)[:2] != (MAGIC, VERSION):
                raise StoreError(f"`{path}` is of another version of Penstock")
            return body
    raise StoreError(f"`{path}` is damaged; hint: put a copy of it in its place")


def _decode(record: bytes, key: str) -> tuple[bytes, int] | None:
    """Return the key of the files, and the state; None with another key."""
    _, _, state, salt, nonce = _HEAD.unpack_from(record)
    head, sealed = record[: _HEAD.size], record[_HEAD.size :]
    secret = opened(aead(AES, _derived(key, salt)), nonce, sealed, head)
    return None if secret is None else (secret, state)


def _derived(key: str, salt: bytes) -> bytes:
    return scrypt(
        key.encode(),
        salt=salt,
        n=SCRYPT_N,
        r=SCRYPT_R,
        p=SCRYPT_P,
        maxmem=SCRYPT_BYTES_MAX,
        dklen=KEY_BYTES,
    )


def _check_plain(disk: Disk, root: str) -> None:
    """Refuse a store with encrypted files: their key is missing."""
    for path in _files(disk, root):
        if _is_encrypted(disk, path):
            raise StoreError(
                f"`{path}` is encrypted, and `{root}/{NAME}` is missing; hint: put it back"
            )


def _take_over(disk: Disk, root: str, keys: Keys) -> int:
    """Encrypt the files that are not; return how many there were."""
    own = encrypted(disk, keys)
    count = 0
    for path in list(_files(disk, root)):
        if path.endswith(DRAFT):
            # A crash left it, and nobody reads it.
            disk.remove(path)
        elif not _is_encrypted(disk, path):
            write_whole(own, path, read_whole(disk, path) or b"")
            count += 1
    return count


def _files(disk: Disk, root: str) -> Iterator[str]:
    """Yield the files of all streams but those that are deleted: they go at the start."""
    for account in disk.names(root):
        if account in (LOCK, NAME, NAME + DRAFT):
            continue
        streams = f"{root}/{account}/streams"
        for stream in disk.names(streams):
            if not stream.endswith(DELETED):
                yield from _stream_files(disk, f"{streams}/{stream}")


def _stream_files(disk: Disk, directory: str) -> Iterator[str]:
    messages, consumers = f"{directory}/messages", f"{directory}/consumers"
    for path in (directory, messages):
        paths = (f"{path}/{name}" for name in disk.names(path))
        yield from (each for each in paths if each not in (messages, consumers))
    for name in disk.names(consumers):
        # The name of a consumer has no dot, so whatever has one is a log.
        if "." in name:
            yield f"{consumers}/{name}"
        else:
            yield from (f"{consumers}/{name}/{each}" for each in disk.names(f"{consumers}/{name}"))


def _is_encrypted(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    try:
        return not file.size() or is_encrypted(file)
    finally:
        file.close()
