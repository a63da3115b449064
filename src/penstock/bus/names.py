"""What topics may be called."""

from __future__ import annotations

import re

from penstock.errors import BusError

TOPIC_CHARACTERS_MAX = 255
_is_token = re.compile(r"[A-Za-z0-9_:=-]+").fullmatch


def check_topic(topic: str) -> str:
    """Return `topic` if it can be published to."""
    if len(topic) > TOPIC_CHARACTERS_MAX or not all(map(_is_token, topic.split("."))):
        raise BusError(
            f"`{topic}` is no topic; hint: tokens of A-Z a-z 0-9 _ : = - joined by dots, "
            f"at most {TOPIC_CHARACTERS_MAX} characters"
        )
    return topic


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it can be subscribed to: a topic, with `*` and a last `>`."""
    *tokens, last = pattern.split(".")
    plain = [token for token in tokens if token != "*"]
    if last not in ("*", ">"):
        plain.append(last)
    if plain:
        check_topic(".".join(plain))
    return pattern
