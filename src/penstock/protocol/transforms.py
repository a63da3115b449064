"""
Subjects made from other subjects: `orders.*.>` to `{{wildcard(1)}}.orders.>`.

A transform has a source, which is a pattern, and a destination, whose tokens are literals
or functions of the tokens that the source's wildcards matched. The functions, their
spellings and their error messages are nats-server's (ADR-30).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.protocol import subjects as patterns

Make = Callable[[Sequence[bytes]], bytes]
"""Makes one destination token, or several joined by dots, from all tokens of a subject."""

HEAD = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\(")
TAIL = re.compile(rb"\)\s*\}\}")
"""The delimiters of a function's arguments. Searching for one at a time takes a single pass."""
SOURCE_BYTES_MAX = 4096
DESTINATION_BYTES_MAX = 1024
"""The result for each message is at least this long."""
COMMA = re.compile(rb",\s*")
SPACES = b"\t\n\f\r "
INT32_MAX = (1 << 31) - 1

ERROR = "invalid mapping destination: {} in {}"
UNKNOWN_FUNCTION = "unknown function"
NOT_ENOUGH = "not enough arguments passed to the function"
TOO_MANY = "too many arguments passed to the function"
INVALID_ARGUMENT = "function argument is invalid or in the wrong format"
OUT_OF_RANGE = "wildcard index out of range"


class InvalidTransform(ValueError):
    """A source and a destination that do not match; the text is nats-server's."""


class Function(NamedTuple):
    """A function call in a destination: its wildcards and its arguments."""

    name: str
    wildcards: tuple[int, ...]
    """The wildcards of the source, from 1; none is the whole subject."""
    number: int = 0
    separator: bytes = b""


class Transform:
    """One source and its destination."""

    def __init__(self, source: bytes, destination: bytes, random: Callable[[], float]) -> None:
        self.source = source or b">"
        self.destination = destination
        self._random = random
        if len(self.source) > SOURCE_BYTES_MAX:
            raise InvalidTransform("invalid subject")
        if len(destination) > DESTINATION_BYTES_MAX:
            limit = f"maximum allowed is {DESTINATION_BYTES_MAX}"
            raise InvalidTransform(f"invalid mapping destination: too long, {limit}")
        tokens, targets = _tokens(self.source), _tokens(destination)
        if (tokens[-1] == b">") != (targets[-1] == b">") or b"*" in targets:
            raise InvalidTransform("invalid subject")
        self._wildcards = [index for index, token in enumerate(tokens) if token == b"*"]
        self._rest = len(tokens) - 1 if targets[-1] == b">" else None
        is_open = bool(self._wildcards) or self._rest is not None
        made = targets if self._rest is None else targets[:-1]
        self._makes = [self._maker(token, is_open) for token in made]

    def apply(self, subject: bytes) -> bytes | None:
        """Return the transformed subject; None if the source does not match it."""
        if not patterns.matches(self.source, subject):
            return None
        tokens = subject.split(b".")
        made = [make(tokens) for make in self._makes]
        if self._rest is not None:
            made += tokens[self._rest :]
        return b".".join(made)

    def _maker(self, token: bytes, is_open: bool) -> Make:
        function = _function(token)
        if function is None:
            return lambda tokens: token
        if not is_open:
            if function.name not in ("partition", "random"):
                raise _refused(OUT_OF_RANGE, token)
            # Without wildcards, the only choice is the whole subject.
            function = function._replace(wildcards=())
        for wildcard in function.wildcards:
            if wildcard > len(self._wildcards):
                raise _refused(OUT_OF_RANGE, b"%b: [%d]" % (token, wildcard))
        if function.name == "random":
            return lambda tokens: b"%d" % int(self._random() * (function.number or 1))
        # As in nats-server, a missing wildcard is the first token.
        places = [self._wildcards[each - 1] if each > 0 else 0 for each in function.wildcards]
        if function.name == "partition":
            return lambda tokens: _partition(
                b"".join([tokens[place] for place in places]) if places else b".".join(tokens),
                function.number,
            )
        change, place = CHANGES[function.name], places[0]
        return lambda tokens: change(tokens[place], function)


def _tokens(pattern: bytes) -> list[bytes]:
    # A function may contain spaces, so this is laxer than the check of subscriptions.
    tokens = pattern.split(b".")
    if b"" in tokens or b">" in tokens[:-1]:
        raise InvalidTransform("invalid subject")
    return tokens


def check(source: str, destination: str) -> None:
    """Check a transform; raise InvalidTransform."""
    if not destination:
        return
    tokens = destination.encode().split(b".")
    rest = tokens.index(b">") if b">" in tokens else len(tokens)
    for index, token in enumerate(tokens):
        if not token or index > rest:
            place = f" in {token.decode(errors='replace')}" if token else ""
            raise InvalidTransform(f"invalid mapping destination: invalid transform{place}")
        if not _looks_called(token) and token.translate(None, SPACES) != token:
            raise InvalidTransform("invalid mapping destination: invalid transform")
    Transform(source.encode(), destination.encode(), lambda: 0.0)


def _looks_called(token: bytes) -> bool:
    return len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")


def _refused(text: str, token: bytes) -> InvalidTransform:
    return InvalidTransform(ERROR.format(text, token.decode(errors="replace")))


def _called(token: bytes) -> tuple[str, list[bytes]]:
    """Return the name and the arguments of a function; an empty name if it is unknown."""
    head, tails = HEAD.search(token), [each.start() for each in TAIL.finditer(token)]
    if head is None or not tails or tails[-1] < head.end():
        return "", []
    name = head[1].decode()
    folded = name.lower()
    if folded not in SPELLINGS or not _is_spelled(name, SPELLINGS[folded]):
        return "", []
    return folded, COMMA.split(token[head.end() : tails[-1]])


def _function(token: bytes) -> Function | None:
    """Return the function in a destination token; None if it is literal."""
    if len(token) > 1 and token.startswith(b"$"):
        number = _integer(token[1:])
        return None if number is None else Function("wildcard", (number,))
    if not _looks_called(token):
        return None
    name, arguments = _called(token)
    if not name:
        raise _refused(UNKNOWN_FUNCTION, token)
    if name == "partition":
        numbers = _integers(arguments, token)
        return Function(name, tuple(numbers[1:]), _bounded(numbers[0], token))
    if name == "random":
        if len(arguments) != 1:
            raise _refused(NOT_ENOUGH, token)
        return Function(name, (), _bounded(_integers(arguments, token)[0], token))
    return _of_one_wildcard(name, arguments, token)


def _of_one_wildcard(name: str, arguments: list[bytes], token: bytes) -> Function:
    wanted = 1 if name == "wildcard" else 2
    if len(arguments) < wanted or arguments == [b""]:
        raise _refused(NOT_ENOUGH, token)
    if len(arguments) > wanted:
        raise _refused(TOO_MANY, token)
    wildcard = _integers(arguments[:1], token)[0]
    if name == "wildcard":
        return Function(name, (wildcard,))
    if name != "split":
        return Function(name, (wildcard,), _bounded(_integers(arguments[1:], token)[0], token))
    if b" " in arguments[1] or b"." in arguments[1]:
        raise _refused(INVALID_ARGUMENT, token)
    return Function(name, (wildcard,), separator=arguments[1])


def _integer(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"[+-]?[0-9]{1,19}", text) else None


def _integers(arguments: list[bytes], token: bytes) -> list[int]:
    numbers = [_integer(argument.strip(b" ")) for argument in arguments]
    if None in numbers:
        raise _refused(INVALID_ARGUMENT, token)
    return [number for number in numbers if number is not None]


def _bounded(number: int, token: bytes) -> int:
    if number > INT32_MAX:
        raise _refused(INVALID_ARGUMENT, token)
    return number


def _partition(key: bytes, partitions: int) -> bytes:
    """Return the partition of a key, by its FNV-1a hash."""
    digest = 0x811C9DC5
    for byte in key:
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return b"%d" % (digest % partitions if partitions else 0)


def _wildcard(token: bytes, function: Function) -> bytes:
    return token


def _cut(token: bytes, places: Sequence[int]) -> bytes:
    edges = [0, *places, len(token)]
    return b".".join([token[a:b] for a, b in pairwise(edges)])


def _split_from_left(token: bytes, function: Function) -> bytes:
    place = function.number
    return _cut(token, [place]) if 0 < place < len(token) else token


def _split_from_right(token: bytes, function: Function) -> bytes:
    place = function.number
    return _cut(token, [len(token) - place]) if 0 < place < len(token) else token


def _slice_from_left(token: bytes, function: Function) -> bytes:
    size = function.number
    return _cut(token, range(size, len(token), size)) if 0 < size < len(token) else token


def _slice_from_right(token: bytes, function: Function) -> bytes:
    size = function.number
    if not 0 < size < len(token):
        return token
    return _cut(token, range(len(token) % size or size, len(token), size))


def _left(token: bytes, function: Function) -> bytes:
    size = function.number
    return token[:size] if 0 < size < len(token) else token


def _right(token: bytes, function: Function) -> bytes:
    size = function.number
    return token[-size:] if 0 < size < len(token) else token


def _split(token: bytes, function: Function) -> bytes:
    parts = token.split(function.separator) if function.separator else _characters(token)
    return b".".join([part for part in parts if part])


def _characters(token: bytes) -> list[bytes]:
    # Go too leaves invalid bytes as they are, each for itself.
    characters = token.decode(errors="surrogateescape")
    return [character.encode(errors="surrogateescape") for character in characters]


def _is_spelled(name: str, meant: str) -> bool:
    """Tell whether a name differs only by small letters in place of capital ones."""
    return all(a in (b, b.lower()) for a, b in zip(name, meant, strict=True))


CHANGES: dict[str, Callable[[bytes, Function], bytes]] = {
    "wildcard": _wildcard,
    "splitfromleft": _split_from_left,
    "splitfromright": _split_from_right,
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "split": _split,
    "left": _left,
    "right": _right,
}

SPELLINGS = {
    name.lower(): name
    for name in (
        *("Wildcard", "Partition", "Random", "Split", "Left", "Right"),
        *("SplitFromLeft", "SplitFromRight", "SliceFromLeft", "SliceFromRight"),
    )
}
"""A function with a capital letter may also be written without."""
