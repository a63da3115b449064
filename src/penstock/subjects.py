"""
Subjects and patterns, as bytes, because that is what the wire carries.

A subject is tokens joined by dots. In a pattern, `*` stands for one token and
`>` for one or more at the end; both only as whole tokens, so `foo*` is literal.
"""

from __future__ import annotations

WHITE_SPACE = b" \t\r\n\f\v"


def is_valid(pattern: bytes) -> bool:
    """Tell whether `pattern` may be subscribed to: no empty token, `>` only last."""
    if any(byte in WHITE_SPACE for byte in pattern):
        return False
    tokens = pattern.split(b".")
    return b"" not in tokens and b">" not in tokens[:-1]


def is_literal(pattern: bytes) -> bool:
    """Tell whether `pattern` has no wildcard token."""
    if b"*" not in pattern and b">" not in pattern:
        return True
    tokens = pattern.split(b".")
    return b"*" not in tokens and b">" not in tokens


def is_valid_literal(subject: bytes) -> bool:
    """Tell whether `subject` is valid and without wildcards, as pedantic publishers must be."""
    return is_valid(subject) and is_literal(subject)


def matches(pattern: bytes, subject: bytes) -> bool:
    """Tell whether the literal `subject` is one that `pattern` stands for."""
    if pattern == subject or pattern == b">":
        return True
    return _tokens_match(pattern.split(b"."), subject.split(b"."))


def contains(pattern: bytes, narrower: bytes) -> bool:
    """Tell whether every subject of the pattern `narrower` is also one of `pattern`."""
    return _tokens_match(pattern.split(b"."), narrower.split(b"."))


def overlap(one: bytes, other: bytes) -> bool:
    """Tell whether some subject is matched by both patterns."""
    left, right = one.split(b"."), other.split(b".")
    for a, b in zip(left, right, strict=False):
        if a == b">" or b == b">":
            return True
        if a != b and a != b"*" and b != b"*":
            return False
    return len(left) == len(right)


def literal_prefix(pattern: bytes) -> bytes:
    """Return what every subject of `pattern` starts with."""
    tokens = pattern.split(b".")
    for index, token in enumerate(tokens):
        if token in (b"*", b">"):
            return b"".join(literal + b"." for literal in tokens[:index])
    return pattern


def _tokens_match(pattern: list[bytes], subject: list[bytes]) -> bool:
    """Match token by token. A `>` of the pattern takes whatever is left, if anything is."""
    for index, token in enumerate(pattern):
        if index == len(subject):
            return False
        if token == b">":
            return True
        if token != subject[index] and (token != b"*" or subject[index] == b">"):
            return False
    return len(pattern) == len(subject)
