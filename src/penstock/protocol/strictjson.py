"""
Read JSON requests as strictly as nats-server does, with its error messages.

Clients, and the tests of clients, match the texts, so they are Go's: an unknown field, a
value of the wrong type and a syntax error each have their own sentence.

The fields of an object are a mapping of names to kinds. A kind is the name of a Go type
("string", "bool", "int64", "time.Duration", "[]string", ...; a "subject" is a string of
bounded length), a tuple of the words of an enumeration (`OneOf`, if it has its own error
message), a mapping for an object, or a list with one mapping for an array of objects. Field
names match in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.subjects import whole

Fields = Mapping[str, Any]

INTEGERS = {
    "int": (-(1 << 63), (1 << 63) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "time.Duration": (-(1 << 63), (1 << 63) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint64": (0, (1 << 64) - 1),
}
INTEGER_CHARACTERS_MAX = 20
"""Including the sign."""
ANYTHING = "interface {}"
TOO_DEEP = "exceeded max depth"
WHITE_SPACE = " \t\r\n"
GAP = re.compile(f"[{WHITE_SPACE}]*")
REQUEST_BYTES_MAX = 256 * 1024
"""No client needs more: the largest part of a stream is metadata, 128 KB at most."""
SUBJECT_CHARACTERS_MAX = 4096
"""A longer subject does not fit into a control line of the default size."""
VALUES_MAX = 16
"""Maximum number of consecutive values in a request: clients send one."""
SCANNED_CHARACTERS_MAX = 16 * 1024
"""In a longer text, errors are not located."""
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:(?<=[0-9])\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?")
ESCAPE = re.compile(r'\\(?:[bfnrt"\\/]|u[0-9a-fA-F]{4})')
GO_ESCAPES = {chr(code): f"\\x{code:02x}" for code in range(32)} | {
    "\a": "\\a",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\v": "\\v",
    "\f": "\\f",
    "\r": "\\r",
    "'": "\\'",
}


class OneOf(NamedTuple):
    """An enumeration with its own error message."""

    words: tuple[str, ...]
    refusal: str
    """May contain a place for the word: `{}`."""


class InvalidJson(ValueError):
    """An invalid request; `text` is without the offset, as json.Unmarshal reports it."""

    def __init__(self, text: str, offset: int | None = None) -> None:
        self.text = text
        super().__init__(text if offset is None else f"{text} at offset {offset}")


class _Fraction(str):
    """A number with a fraction or an exponent, or far too long, as written: no field accepts it."""


def decode(
    request: bytes, fields: Fields, type_name: str, *, strict: bool = True
) -> dict[str, Any]:
    """
    Return the fields of a request that are present and not null; an empty one has none.

    Without `strict`, unknown fields are skipped.
    """
    if len(request) > REQUEST_BYTES_MAX:
        raise InvalidJson(f"a request may have at most {REQUEST_BYTES_MAX} bytes")
    text = request.decode(errors="replace")
    values: dict[str, Any] = {}
    # Go's decoder goes on after the first value, and so do we.
    for value in _values(text):
        if value is None:
            continue
        if not isinstance(value, dict):
            raise _mismatch(value, f"Go value of type server.{type_name}")
        if not strict:
            value = {key: item for key, item in value.items() if key.lower() in fields}
        values |= _object(value, fields, type_name)
    return values


def is_object_or_array(request: bytes) -> bool:
    """Tell whether a request has options at all; others are ignored by calls that need none."""
    return request.lstrip()[:1] in (b"{", b"[")


def _values(text: str) -> list[Any]:
    values: list[Any] = []
    text = text.rstrip(WHITE_SPACE)
    position = 0
    try:
        while position < len(text):
            position = GAP.match(text, position).end()  # type: ignore[union-attr]
            value, position = _DECODER.raw_decode(text, position)
            values.append(value)
            if len(values) > VALUES_MAX:
                raise InvalidJson(f"more than {VALUES_MAX} values in a request")
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson(TOO_DEEP) from None
    except ValueError:
        raise _syntax_error(text, position) from None
    return values


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _whole_number(text: str) -> Any:
    # No field takes a longer one, and Python takes its time to read it.
    return int(text) if len(text) <= INTEGER_CHARACTERS_MAX else _Fraction(text)


_DECODER = json.JSONDecoder(parse_float=_Fraction, parse_int=_whole_number, parse_constant=_refuse)


def _object(value: Mapping[str, Any], fields: Fields, path: str) -> dict[str, Any]:
    found = {}
    for key, item in value.items():
        name = key if key in fields else key.lower()
        if name not in fields:
            raise InvalidJson(f"json: unknown field {json.dumps(key)}")
        if item is not None:
            found[name] = _item(item, fields[name], f"{path}.{name}")
    return found


def _item(item: Any, kind: Any, path: str) -> Any:
    """Check one value against the kind its field has."""
    if isinstance(kind, OneOf):
        if item not in kind.words:
            raise InvalidJson(kind.refusal.format(json.dumps(item)))
        return item
    if isinstance(kind, tuple):
        if item not in kind:
            raise InvalidJson(f"can not unmarshal {json.dumps(json.dumps(item))}")
        return item
    if isinstance(kind, Mapping):
        return _object(_typed(item, dict, path, "object"), kind, path)
    if isinstance(kind, list):
        items = _typed(item, list, path, "[]object")
        return [_object(_typed(each, dict, path, "object"), kind[0], path) for each in items]
    if kind in INTEGERS:
        return _integer(item, kind, path)
    return _CHECKS[kind](item, path)


def _integer(item: Any, kind: str, path: str) -> int:
    lowest, highest = INTEGERS[kind]
    if type(item) is int and lowest <= item <= highest:
        return item
    raise _mismatch(item, f"Go struct field {path} of type {kind}", show_number=True)


def _typed(item: Any, expected: type, path: str, kind: str) -> Any:
    if type(item) is not expected:
        raise _mismatch(item, f"Go struct field {path} of type {kind}")
    return item


def _strings(items: Any, path: str) -> tuple[str, ...]:
    for index, item in enumerate(_typed(items, list, path, "[]string")):
        if item is not None and type(item) is not str:
            raise _mismatch(item, f"{path}.{index} of type string")
    return tuple(whole(item or "") for item in items)


def _durations(items: Any, path: str) -> tuple[int, ...]:
    found = _typed(items, list, path, "[]time.Duration")
    return tuple(_integer(item, "time.Duration", f"{path}.{n}") for n, item in enumerate(found))


def _string_map(items: Any, path: str) -> dict[str, str]:
    found = _typed(items, dict, path, "map[string]string")
    return {
        whole(key): "" if item is None else _string(item, f"{path}.{key}")
        for key, item in found.items()
    }


def _string(item: Any, path: str) -> str:
    return whole(_typed(item, str, path, "string"))


def _subject(item: Any, path: str) -> str:
    """Return a subject, a pattern or a template of one: they are no longer than a line."""
    text = _string(item, path)
    if len(text) > SUBJECT_CHARACTERS_MAX:
        raise InvalidJson(f"{path} is longer than {SUBJECT_CHARACTERS_MAX} characters")
    return text


def _subjects(items: Any, path: str) -> tuple[str, ...]:
    for text in (found := _strings(items, path)):
        _subject(text, path)
    return found


def _time(item: Any, path: str) -> str:
    if type(item) is not str:
        raise InvalidJson("Time.UnmarshalJSON: input is not a JSON string")
    try:
        parse_time(item)
    except ValueError as error:
        raise InvalidJson(str(error)) from None
    return item


_CHECKS: dict[str, Any] = {
    "string": _string,
    "subject": _subject,
    "bool": lambda item, path: _typed(item, bool, path, "bool"),
    "[]string": _strings,
    "[]subject": _subjects,
    "[]time.Duration": _durations,
    "map[string]string": _string_map,
    "time.Time": _time,
    ANYTHING: lambda item, path: item,
}


def _mismatch(item: Any, target: str, *, show_number: bool = False) -> InvalidJson:
    types = {bool: "bool", int: "number", _Fraction: "number", str: "string", list: "array"}
    kind = types.get(type(item), "object")
    shown = f" {item}" if show_number and kind == "number" else ""
    return InvalidJson(f"json: cannot unmarshal {kind}{shown} into {target}")


def _syntax_error(text: str, start: int) -> InvalidJson:
    """Say where and how the text from `start` on stops to be JSON, as Go's scanner does."""
    if len(text) > SCANNED_CHARACTERS_MAX:
        return InvalidJson("invalid JSON in a request too long to say where")
    scanner = _Scanner(text, start)
    try:
        scanner.value()
    except InvalidJson as error:
        return error
    except RecursionError:
        return InvalidJson(TOO_DEEP)
    return InvalidJson("unexpected EOF")


class _Scanner:
    """Walks over JSON only to find what is wrong with it."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def value(self) -> None:
        """Pass over one value."""
        character = self._next()
        if character == "{":
            self._members()
        elif character == "[":
            self._elements()
        elif character == '"':
            self._string()
        elif character in "tfn":
            self._literal({"t": "true", "f": "false", "n": "null"}[character])
        elif character in "-0123456789":
            self._number()
        else:
            self._fail("looking for beginning of value")

    def _members(self) -> None:
        where = "looking for beginning of object key string"
        if self._next() == "}":
            return
        while True:
            if self.text[self.position - 1] != '"':
                self._fail(where)
            self._string()
            if self._next() != ":":
                self._fail("after object key")
            self.value()
            if self._closes("}", "after object key:value pair"):
                return
            self._next()

    def _elements(self) -> None:
        if self._next() == "]":
            return
        self.position -= 1
        while True:
            self.value()
            if self._closes("]", "after array element"):
                return

    def _closes(self, bracket: str, where: str) -> bool:
        character = self._next()
        if character not in (bracket, ","):
            self._fail(where)
        return character == bracket

    def _string(self) -> None:
        while (character := self._take()) != '"':
            if character == "\\":
                self._escape()
            elif character < " ":
                self._fail("in string")

    def _escape(self) -> None:
        start = self.position - 1
        digits = 4 if self._take() == "u" else 0
        for _ in range(digits):
            self._take()
        if not ESCAPE.fullmatch(self.text, start, self.position):
            sequence = self.text[start : self.position]
            raise InvalidJson(f"invalid escape sequence `{sequence}` in string", self._offset())

    def _literal(self, word: str) -> None:
        for expected in word[1:]:
            if self._take() != expected:
                self._fail(f"in literal {word} (expecting '{expected}')")

    def _number(self) -> None:
        match = NUMBER.match(self.text, self.position - 1)
        assert match is not None, "the pattern also matches nothing"
        self.position = match.end()
        if not match.group()[-1:].isdigit():
            self._take()
            self._fail("in numeric literal")

    def _next(self) -> str:
        """Take the next character that is not white space."""
        while (character := self._take()) in WHITE_SPACE:
            pass
        return character

    def _take(self) -> str:
        if self.position >= len(self.text):
            raise InvalidJson("unexpected EOF")
        self.position += 1
        return self.text[self.position - 1]

    def _fail(self, where: str) -> None:
        shown = GO_ESCAPES.get(self.text[self.position - 1], self.text[self.position - 1])
        raise InvalidJson(f"invalid character '{shown}' {where}", self._offset())

    def _offset(self) -> int:
        """Return where we are in bytes, which is how Go counts."""
        return len(self.text[: self.position].encode())
