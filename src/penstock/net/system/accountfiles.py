"""
Account tokens in a directory: one file for each, named by the account's key.

This is the `full` resolver of nats-server, with the same files. A token takes effect once
it is on disk. The `cache` resolver also removes files: when they expire, or when there are
too many. It only takes newer tokens of accounts that it already has.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.config import accounttokens
from penstock.config.accounts import Resolver
from penstock.errors import ConfigError
from penstock.files import PRIVATE, replace_file
from penstock.keys import nkeys
from penstock.keys.tokens import InvalidToken

log = logging.getLogger("penstock")

SUFFIX = ".jwt"
DELETED = ".deleted"


class AccountFiles:
    """Reads, writes and removes tokens."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self.ttl_s = resolver.ttl_s
        """How long a cache keeps a file; 0: forever."""
        self._started_s = time.time()
        self._directory = Path(resolver.directory)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"`resolver` has the directory {resolver.directory}, "
                f"which cannot be used: {error.strerror}"
            ) from error

    def merged(self, preload: Mapping[str, str], operators: frozenset[str]) -> dict[str, str]:
        """Return the newest token of each account, on disk or preloaded; save preloaded ones."""
        found = self._read(operators)
        for key, token in preload.items():
            try:
                issued_s = accounttokens.decode(key, token, operators).issued_s
                kept = found.get(key)
                if kept is None or issued_s >= accounttokens.decode(key, kept, operators).issued_s:
                    found[key] = token
                    self.save(key, token)
            except InvalidToken:
                found[key] = token  # The next reader reports the error.
        return found

    def save(self, key: str, token: str) -> None:
        """Save a token, replacing an older one."""
        path = self._path(key)
        if path.exists() and path.read_text() == token:
            return
        limit = self._resolver.limit
        files = list(self._directory.glob(f"*{SUFFIX}")) if limit and not path.exists() else []
        if limit and len(files) >= limit:
            if not self._resolver.is_cache:
                raise OSError("jwt store is full")
            min(files, key=lambda file: file.stat().st_mtime).unlink()
        replace_file(path, token, mode=PRIVATE, durable=True)
        self._sync()

    def delete(self, key: str) -> None:
        """Delete a token. Without `hard_delete`, its file is only renamed."""
        path = self._path(key)
        if not path.exists():
            return
        if self._resolver.hard_delete:
            path.unlink()
        else:
            path.rename(path.with_name(path.name + DELETED))
        self._sync()

    def sweep(self) -> None:
        """Remove expired files of a cache; their accounts stay until the server ends."""
        now_s = time.time()
        for path in self._directory.glob(f"*{SUFFIX}"):
            if now_s - max(path.stat().st_mtime, self._started_s) >= self.ttl_s:
                path.unlink(missing_ok=True)

    def _read(self, operators: frozenset[str]) -> dict[str, str]:
        found = {}
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            key = path.name.removesuffix(SUFFIX)
            try:
                token = path.read_text().strip()
                accounttokens.decode(key, token, operators)
                found[key] = token
            except (OSError, UnicodeDecodeError, InvalidToken) as error:
                log.error("The account in %s is left out: %s", path, error)
        return found

    def _path(self, key: str) -> Path:
        if not nkeys.is_public(key, nkeys.ACCOUNT_PREFIX):
            raise OSError("invalid public key")
        return self._directory / f"{key}{SUFFIX}"

    def _sync(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
