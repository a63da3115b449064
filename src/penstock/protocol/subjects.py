"""
Subjects and patterns, as bytes, the form of the wire.

A subject is tokens joined by dots. In a pattern, `*` stands for one token and
`>` for one or more at the end; both only as whole tokens, so `foo*` is literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WHITE_SPACE = b" \t\r\n"
LONE_SURROGATES = re.compile("[\ud800-\udfff]")
"""Half a character: JSON can express it, UTF-8 cannot."""

ESCAPED = {'"': '\\"', "\\": "\\\\"} | {
    chr(number): f"\\{letter}" for number, letter in enumerate("abtnvfr", start=7)
}
"""Characters that Go escapes with a letter."""
UNDECODED = range(0xDC80, 0xDD00)
"""Bytes that are not UTF-8, as Python represents them in a text."""


def is_valid(pattern: bytes) -> bool:
    """Tell whether `pattern` may be subscribed to: no empty token, `>` only last."""
    if pattern.translate(None, WHITE_SPACE) != pattern:
        return False
    tokens = pattern.split(b".")
    return b"" not in tokens and b">" not in tokens[:-1]


def is_sendable(subject: bytes) -> bool:
    """Tell whether a control line can carry `subject`, whatever its tokens are."""
    return bool(subject) and subject.translate(None, WHITE_SPACE) == subject


def is_literal(pattern: bytes) -> bool:
    """Tell whether `pattern` has no wildcard token."""
    if b"*" not in pattern and b">" not in pattern:
        return True
    tokens = pattern.split(b".")
    return b"*" not in tokens and b">" not in tokens


def is_valid_literal(subject: bytes) -> bool:
    """Tell whether `subject` is valid and has no wildcards, as pedantic mode requires."""
    return is_valid(subject) and is_literal(subject)


def matches(pattern: bytes, subject: bytes) -> bool:
    """
    Tell whether `pattern` matches `subject`.

    A publisher that is not pedantic may use a subject such as `a.>`. Its tokens are literal
    here, so a `*` matches any of them, and denies it too.
    """
    if pattern == subject or pattern == b">":
        return True
    return _tokens_match(pattern.split(b"."), subject.split(b"."))


def contains(pattern: bytes, narrower: bytes) -> bool:
    """Tell whether `pattern` matches every subject that `narrower` matches."""
    tokens, narrower_tokens = pattern.split(b"."), narrower.split(b".")
    if tokens[-1] == b"*" and narrower_tokens[-1] == b">":
        return False  # one token cannot stand for many
    return _tokens_match(tokens, narrower_tokens)


def cover(patterns: Iterable[bytes], narrower: bytes) -> bool:
    """Tell whether each subject that `narrower` matches is matched by one of some patterns."""
    return _cover([pattern.split(b".") for pattern in patterns], narrower.split(b"."))


def overlap(one: bytes, other: bytes) -> bool:
    """Tell whether both patterns match some subject."""
    left, right = one.split(b"."), other.split(b".")
    for a, b in zip(left, right, strict=False):
        if a == b">" or b == b">":
            return True
        if a != b and a != b"*" and b != b"*":
            return False
    return len(left) == len(right)


def literal_prefix(pattern: bytes) -> bytes:
    """Return the common start of all subjects of `pattern`."""
    tokens = pattern.split(b".")
    for index, token in enumerate(tokens):
        if token in (b"*", b">"):
            return b"".join(literal + b"." for literal in tokens[:index])
    return pattern


def _tokens_match(pattern: list[bytes], subject: list[bytes]) -> bool:
    """Match token by token. A `>` in the pattern matches one or more remaining tokens."""
    for index, token in enumerate(pattern):
        if index == len(subject):
            return False
        if token == b">":
            return True
        if token != subject[index] and token != b"*":
            return False
    return len(pattern) == len(subject)


def _cover(patterns: list[list[bytes]], tokens: list[bytes]) -> bool:
    """Go token by token, with what is left of the patterns that match so far."""
    if not tokens:
        return [] in patterns
    if any(pattern[:1] == [b">"] for pattern in patterns):
        return True
    first, *rest = tokens
    if first == b">":
        # It stands for one token, or for one and more behind it.
        return _cover(patterns, [b"*"]) and _cover(patterns, [b"*", b">"])
    # Some token is in no pattern, so that only wildcards match all that `*` stands for.
    left = [pattern[1:] for pattern in patterns if pattern[:1] in ([first], [b"*"])]
    return bool(left) and _cover(left, rest)


def text(name: bytes) -> str:
    """
    Return a name to compare and to look up: two spellings are never the same text.

    With U+FFFD in place of invalid UTF-8, a rule that denies one spelling could be passed with
    another. JSON cannot write what stands in its place here.
    """
    return name.decode(errors="surrogateescape")


def shown(name: str) -> str:
    """Return such a text for JSON, a log or a page: with U+FFFD, as Go shows it."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def whole(text: str) -> str:
    """Return a text of JSON with U+FFFD in place of half characters, as Go reads it."""
    return LONE_SURROGATES.sub("\ufffd", text) if not text.isascii() else text


def quoted(name: bytes) -> str:
    """Return a subject or queue quoted as Go does it, and so nats-server: one printable line."""
    return '"' + "".join(map(_in_print, name.decode(errors="surrogateescape"))) + '"'


def _in_print(char: str) -> str:
    if char in ESCAPED or char.isprintable():
        return ESCAPED.get(char, char)
    code = ord(char)
    if code < 0x80 or code in UNDECODED:
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
