"""
The tokens of accounts, kept in a directory: a file for each, named by the account's key.

This is the `full` resolver of nats-server, and its files. A token counts once it is on disk.
"""

from __future__ import annotations

import logging
import os
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
        self._directory = Path(resolver.directory)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"`resolver` has the directory {resolver.directory}, "
                f"which can not be used: {error.strerror}"
            ) from error

    def merged(self, preload: Mapping[str, str], operators: frozenset[str]) -> dict[str, str]:
        """Return the tokens on disk with those of the file, of which newer ones are kept too."""
        found = self._read(operators)
        for key, token in preload.items():
            try:
                issued_s = accounttokens.decode(key, token, operators).issued_s
                kept = found.get(key)
                if kept is None or issued_s >= accounttokens.decode(key, kept, operators).issued_s:
                    found[key] = token
                    self.save(key, token)
            except InvalidToken:
                found[key] = token  # Who reads it next says what is wrong with it.
        return found

    def save(self, key: str, token: str) -> None:
        """Keep a token, in place of an older one."""
        path = self._path(key)
        if path.exists() and path.read_text() == token:
            return
        limit = self._resolver.limit
        if limit and not path.exists() and len(list(self._directory.glob(f"*{SUFFIX}"))) >= limit:
            raise OSError("jwt store is full")
        replace_file(path, token, mode=PRIVATE, durable=True)
        self._sync()

    def delete(self, key: str) -> None:
        """Forget a token; unless told otherwise, its file stays under another name."""
        path = self._path(key)
        if not path.exists():
            return
        if self._resolver.hard_delete:
            path.unlink()
        else:
            path.rename(path.with_name(path.name + DELETED))
        self._sync()

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
