"""Small JSON files: what they say is what was written, or they are refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from tests.simdisk import SimDisk

from penstock.errors import StoreError
from penstock.jetstream.store.file.documents import read_document, write_document

PATH = "d/stream.json"
DOCUMENT = {"format": 1, "config": {"name": "ä", "subjects": ["a", "b"], "max_msgs": -1}}
FIELDS = tuple(DOCUMENT)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("d")
    write_document(disk, PATH, DOCUMENT)
    return disk


def test_a_document_is_what_was_written(disk: SimDisk) -> None:
    assert read_document(disk, PATH, FIELDS) == DOCUMENT
    assert read_document(disk, "d/other.json", FIELDS) is None


def test_no_flipped_bit_makes_another_document(disk: SimDisk) -> None:
    content = disk.names_now[PATH].content
    for place in range(8 * len(content)):
        content[place // 8] ^= 1 << place % 8
        with suppress(StoreError):
            assert read_document(disk, PATH, FIELDS) == DOCUMENT
        content[place // 8] ^= 1 << place % 8


def test_one_that_was_edited_is_taken_without_its_checksum(disk: SimDisk) -> None:
    content = disk.names_now[PATH].content
    edited = json.loads(content) | {"format": 2}
    content[:] = json.dumps(edited).encode()
    with pytest.raises(StoreError, match="remove `checksum`"):
        read_document(disk, PATH, FIELDS)

    del edited["checksum"]
    content[:] = json.dumps(edited).encode()

    assert read_document(disk, PATH, FIELDS) == DOCUMENT | {"format": 2}
