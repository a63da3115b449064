"""
Replace files as a whole or not at all, and never through somebody else's link.

The partial file has a name that cannot be guessed and must not exist yet. In a directory
that others can write to, such as `/tmp`, a link placed there beforehand would make us
overwrite its target.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
"""Mode of a file that may hold a secret; its directory has mode 0700."""
PUBLIC = 0o666
"""Mode of any other file, before the umask."""


def replace_file(path: Path, text: str, *, mode: int = PUBLIC, durable: bool = False) -> None:
    """Replace a file by one with this text; with `durable`, it survives a power cut."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, mode), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            partial.unlink()
        raise
