"""
Small JSON files with a checksum of what they say: configurations, and positions in sources.

People may read and even edit one: without its line with the checksum it is taken as it is.
"""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

from penstock.errors import StoreError
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole

CHECKSUM = "checksum"


def encode_document(document: dict[str, Any]) -> bytes:
    """Return the content of a file, with a line for each field."""
    # With `indent`, Python's own encoder takes ten times as long.
    fields = ({CHECKSUM: _checksum(document)} | document).items()
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields]
    return "{{\n{}\n}}\n".format(",\n".join(lines)).encode()


def write_document(disk: Disk, path: str, document: dict[str, Any]) -> None:
    """Replace a file, durably: a power cut leaves the old content or the new. Any thread."""
    write_whole(disk, path, encode_document(document))


def read_document(disk: Disk, path: str, fields: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the content, None without such a file; raise StoreError if it is damaged."""
    try:
        content = read_whole(disk, path)
    except OSError as error:
        raise StoreError(f"`{path}` cannot be read: {error}") from error
    if content is None:
        return None
    try:
        document = json.loads(content)
        expected = document.pop(CHECKSUM, None)
        if {*document} != {*fields}:
            raise ValueError("it does not have the fields it should have")
        if expected not in (None, _checksum(document)):
            raise ValueError(f"its checksum is wrong; hint: if you edited it, remove `{CHECKSUM}`")
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"`{path}` is damaged: {error}") from error
    return dict(document)


def _checksum(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"{crc32(text.encode()):08x}"
