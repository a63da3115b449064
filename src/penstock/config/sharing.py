"""
Subjects that accounts share, and their names on both sides.

An import has a subject in the account that exports it, and may have another one in the
account that imports it. Both have the same wildcards, in any order: `*` is the next one,
`$2` or `{{wildcard(2)}}` the second. So subjects can be translated both ways, and patterns
too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.config.accounts import Account, Import
from penstock.errors import ConfigError
from penstock.protocol.subjects import is_valid, overlap

NUMBERED = re.compile(rb"\$(\d+)|\{\{\s*[wW]ildcard\(\s*(\d+)\s*\)\s*\}\}")

Token = bytes | int
"""A literal, or the number of a wildcard; 0 is the `>` at the end."""
REST = 0


class Relation:
    """The subjects of one import: `foreign` in the exporting account, `local` in the importing."""

    def __init__(self, foreign: str, local: str) -> None:
        self._foreign, self._local = _parse(foreign), _parse(local)
        if _wildcards(self._foreign) != _wildcards(self._local):
            raise ConfigError("both sides must have the same wildcards")
        self.foreign = _pattern(self._foreign)
        self.local = _pattern(self._local)

    def to_local(self, subject: bytes) -> bytes:
        """Return the local form of a matching foreign subject."""
        return _carry(subject, self._foreign, self._local)

    def to_foreign(self, subject: bytes) -> bytes:
        """Return the foreign form of a matching local subject."""
        return _carry(subject, self._local, self._foreign)

    def foreign_pattern(self, pattern: bytes) -> bytes | None:
        """
        Return the foreign pattern to subscribe to for a local one; None if they do not
        overlap.
        """
        common = intersection(pattern, self.local)
        return None if common is None else _carry(common, self._local, self._foreign)


def intersection(one: bytes, other: bytes) -> bytes | None:
    """Return the pattern of the subjects that both patterns match; None if there are none."""
    left, right = one.split(b"."), other.split(b".")
    common: list[bytes] = []
    for index in range(max(len(left), len(right))):
        if left[index : index + 1] == [b">"] and len(right) > index:
            return b".".join(common + right[index:])
        if right[index : index + 1] == [b">"] and len(left) > index:
            return b".".join(common + left[index:])
        if index >= min(len(left), len(right)):
            return None
        a, b = left[index], right[index]
        if a != b and b"*" not in (a, b):
            return None
        common.append(b if a == b"*" else a)
    return b".".join(common)


def check_import(importer: str, taken: Import, accounts: Mapping[str, Account]) -> None:
    """Check that an account may have an import, and that it does not lead back to itself."""
    exporter = accounts.get(taken.account)
    if exporter is None:
        raise ConfigError(
            f'the import of "{taken.subject}" names an unknown account "{taken.account}"'
        )
    if exporter.export_for(taken, importer) is None:
        raise ConfigError(
            f'account "{taken.account}" exports no {taken.kind} "{taken.subject}" to '
            f'"{importer}"; add it to its `exports`'
        )
    for path in _ways(taken, accounts, (importer,)):
        if path[-1] in path[:-1]:
            raise ConfigError(
                f'the import of "{taken.subject}" leads back to itself: {" > ".join(path)}'
            )
    try:
        Relation(taken.subject, taken.local)
    except ConfigError as error:
        raise ConfigError(
            f'"{taken.subject}" cannot be imported as "{taken.to}": {error}'
        ) from None


def _ways(
    taken: Import, accounts: Mapping[str, Account], path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the accounts that an import leads through, up to the end or to a cycle."""
    following = (*path, taken.account)
    yield following
    exporter = accounts.get(taken.account)
    if taken.account in path or exporter is None:
        return
    for each in exporter.imports:
        local = _pattern(_parse(each.local))
        if each.kind == taken.kind and overlap(local, taken.subject.encode()):
            yield from _ways(each, accounts, following)


def _parse(pattern: str) -> list[Token]:
    tokens: list[Token] = []
    wildcards = 0
    for token in pattern.encode().split(b"."):
        numbered = NUMBERED.fullmatch(token)
        if token == b"*":
            wildcards += 1
            tokens.append(wildcards)
        elif numbered is not None:
            tokens.append(int(numbered[1] or numbered[2]))
        else:
            tokens.append(REST if token == b">" else token)
    if not is_valid(_pattern(tokens)):
        raise ConfigError(f'invalid subject "{pattern}"')
    return tokens


def _pattern(tokens: list[Token]) -> bytes:
    return b".".join(
        token if isinstance(token, bytes) else b"*" if token else b">" for token in tokens
    )


def _wildcards(tokens: list[Token]) -> list[int]:
    return sorted(token for token in tokens if isinstance(token, int))


def _carry(subject: bytes, source: list[Token], target: list[Token]) -> bytes:
    """Return the target, with the source's wildcards filled in from a subject."""
    given = subject.split(b".")
    found: dict[Token, bytes] = dict(zip(source, given, strict=False))
    if source[-1] == REST:
        found[REST] = b".".join(given[len(source) - 1 :])
    return b".".join(token if isinstance(token, bytes) else found[token] for token in target)
