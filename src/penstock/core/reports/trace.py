"""Protocol lines for the log, as `-V` asks for: `<` what came in, `>` what went out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.hot.wire import CONNECT, FAIL, INFO, PING, PONG, PUB, SUB, UNSUB, Op

if TYPE_CHECKING:
    from penstock.core.session import Session

log = logging.getLogger("penstock")

TRACE = 5
PAYLOAD_BYTES = 256
"""Of longer payloads only the start is shown."""
NAMES = {SUB: "SUB", UNSUB: "UNSUB", PING: "PING", PONG: "PONG", INFO: "INFO", FAIL: "malformed"}


def is_on() -> bool:
    """Tell whether anybody reads trace lines; asked once, not for every message."""
    return log.isEnabledFor(TRACE)


def received(session: Session, operations: list[Op]) -> None:
    """Log what a peer sent."""
    for operation in operations:
        log.log(TRACE, "< %s - %s", session, _describe(operation))


def sent(session: Session, buffers: list[Any]) -> None:
    """Log what a peer was sent."""
    for line in b"".join(buffers).split(b"\r\n"):
        if line:
            log.log(TRACE, "> %s - %s", session, _text(line))


def _describe(operation: Op) -> str:
    kind = operation[0]
    if kind == PUB:
        return _describe_publish(operation)
    if kind == CONNECT:
        # Passwords, tokens and signatures stay out of the log.
        return "CONNECT"
    words = [_text(field) for field in operation[1:] if field]
    return " ".join([NAMES.get(kind, "OK"), *words])


def _describe_publish(operation: Op) -> str:
    _, subject, reply, header_bytes, size, data = operation
    count = len(data) // (size + 2)
    words = ["HPUB" if header_bytes else "PUB", _text(subject), _text(reply), str(size)]
    repeated = f" x {count}" if count > 1 else ""
    return f"{' '.join(filter(None, words))}{repeated} {_text(data[:size])}"


def _text(field: object) -> str:
    if not isinstance(field, bytes):
        return str(field)
    return field[:PAYLOAD_BYTES].decode(errors="backslashreplace")
