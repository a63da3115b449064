"""The rules for names of topics, services and headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from penstock.errors import AlreadyHandled, BusError
from penstock.protocol import subjects

TOPIC_CHARACTERS_MAX = 255
MESSAGE_ID = "nats-msg-id"
"""The header that makes the server store a message once, in small letters."""
_is_header_name = re.compile("[!-9;-~]+").fullmatch
_is_broken = re.compile("[\r\n\ud800-\udfff]").search
_has_surrogate = re.compile("[\ud800-\udfff]").search
_is_token = re.compile(r"[A-Za-z0-9_:=-]+").fullmatch
_is_name = re.compile(r"[A-Za-z0-9_-]+").fullmatch


def is_name(text: str) -> bool:
    """Return whether this may name a service or a namespace, which is part of subjects."""
    return isinstance(text, str) and _is_name(text) is not None


def check_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers if they arrive as they are: keys of printable ASCII, values of one line."""
    if isinstance(headers, Mapping):
        raise BusError("headers are pairs, as a name may come twice; hint: `headers.items()`")
    pairs = list(headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BusError(f"{pair!r} is no header; hint: a header is a pair of name and value")
        if not is_header(*pair):
            name, value = pair
            raise BusError(
                f"{name!r}: {value!r} is no header; hint: its name is of printable ASCII without "
                "blanks and colons, its value is one line of text"
            )
        if pair[0].lower() == MESSAGE_ID:
            raise BusError(f"{pair[0]!r} is made by the bus, for each topic; hint: `message_id`")
    return pairs


def is_header(name: str, value: str) -> bool:
    """Tell whether a header can be sent."""
    return is_header_name(name) and isinstance(value, str) and not _is_broken(value)


def is_header_name(name: str) -> bool:
    """Tell whether a header may have this name."""
    return isinstance(name, str) and _is_header_name(name) is not None


def check_line(name: str, text: str) -> str:
    """Return `text` if it can be sent as the value of a header."""
    if not isinstance(text, str) or _is_broken(text):
        raise BusError(f"`{name}` must be one line of text: {text!r}")
    return text


def check_text(name: str, text: str) -> str:
    """Return `text` if it can be encoded."""
    if not isinstance(text, str) or _has_surrogate(text):
        raise BusError(f"`{name}` must be text: {text!r}")
    return text


def check_moment(name: str, moment: datetime | None) -> datetime | None:
    """Return a time if it has a zone; without one it is ambiguous."""
    if moment is not None and moment.tzinfo is None:
        raise BusError(
            f"`{name}` must have a time zone: {moment}; hint: `datetime.now(UTC)`, "
            "or `.astimezone()` for local time"
        )
    return moment


def is_dead(topic: str, prefix: str) -> bool:
    """Return whether a topic, or a pattern, is of dead letters."""
    return topic.startswith(f"{prefix}.")


def check_topic(topic: str) -> str:
    """Return `topic` if it can be published to."""
    if (
        not isinstance(topic, str)
        or len(topic) > TOPIC_CHARACTERS_MAX
        or not all(map(_is_token, topic.split(".")))
    ):
        raise BusError(
            f"`{topic}` is no topic; hint: tokens of A-Z a-z 0-9 _ : = - joined by dots, "
            f"at most {TOPIC_CHARACTERS_MAX} characters"
        )
    return topic


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it can be subscribed to: a topic, with `*` and a last `>`."""
    if not isinstance(pattern, str):
        check_topic(pattern)
    *tokens, last = pattern.split(".")
    plain = [token for token in tokens if token != "*"]
    if last not in ("*", ">"):
        plain.append(last)
    if plain:
        check_topic(".".join(plain))
    return pattern


def check_apart(pattern: str, others: Iterable[str]) -> str:
    """Return `pattern` if it shares no topic with another pattern."""
    for other in others:
        if subjects.overlap(other.encode(), pattern.encode()):
            raise AlreadyHandled(
                f"`{pattern}` and `{other}` share topics, and a topic has one handler"
            )
    return pattern
