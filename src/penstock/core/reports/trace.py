"""Protocol lines in the log, in nats-server's format, for `-V`: `<<-` in, `->>` out."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.core.runs import payloads
from penstock.hot.wire import CONNECT, CRLF, FAIL, INFO, KIND, PING, PONG, PUB, SUB, UNSUB, Op
from penstock.protocol.redaction import REDACTED

if TYPE_CHECKING:
    from penstock.core.session import Session

log = logging.getLogger("penstock")

TRACE = 5
TEXT_BYTES = 256
"""Longer payloads and lines are cut to this size."""
NAMES = {SUB: "SUB", UNSUB: "UNSUB", PING: "PING", PONG: "PONG", INFO: "INFO", FAIL: "malformed"}
SECRETS = ("pass", "auth_token", "jwt", "sig")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MESSAGES = (b"MSG ", b"HMSG ")


def is_on() -> bool:
    """Tell whether trace lines are logged. Ask once, not for every message."""
    return log.isEnabledFor(TRACE)


def received(session: Session, operations: list[Op]) -> None:
    """Log operations from a peer."""
    peer = _peer(session)
    for operation in operations:
        for line in _published(operation) if operation[KIND] == PUB else [_described(operation)]:
            log.log(TRACE, "%s - <<- %s", peer, line)


def sent(session: Session, buffers: list[Any]) -> None:
    """Log buffers sent to a peer."""
    peer = _peer(session)
    for line in _lines(b"".join(buffers)):
        log.log(TRACE, "%s - ->> %s", peer, line)


def _peer(session: Session) -> str:
    """Return the address of a client, with its version, language, name and user."""
    options = session.connect_options
    version, lang, name = (options.get(key) for key in ("version", "lang", "name"))
    said = ":".join(str(each) for each in (f"v{version}" if version else "", lang, name) if each)
    words = [str(session)] + ([f'"{_text(said)}"'] if said else [])
    if options.get("user") and session.identity is not None:
        words.append(f'"{_text(f"{session.account.name}/user:{session.identity.user}")}"')
    return " - ".join(words)


def _published(operation: Op) -> Iterator[str]:
    _, subject, reply, header_bytes, size, _ = operation
    verb, sizes = ("HPUB", f"{header_bytes} {size}") if header_bytes else ("PUB", str(size))
    words = " ".join(filter(None, (verb, _text(subject), _text(reply), sizes)))
    for payload in payloads(operation):
        yield f"[{words}]"
        yield from _payload(payload[:-2])


def _described(operation: Op) -> str:
    kind, *fields = operation
    if kind == CONNECT:
        return f"[CONNECT {_without_secrets(fields[0])}]"
    words = [_text(field) for field in fields if field]
    return f"[{' '.join([NAMES.get(kind, 'OK'), *words])}]"


def _without_secrets(options: bytes) -> str:
    try:
        said = json.loads(options)
    except (ValueError, RecursionError):
        return REDACTED
    if not isinstance(said, dict):
        return REDACTED
    shown = said | dict.fromkeys(said.keys() & set(SECRETS), REDACTED)
    return _text(json.dumps(shown, separators=(",", ":"), ensure_ascii=False), bytes_max=4096)


def _lines(data: bytes) -> Iterator[str]:
    """Yield the lines in sent data, and the payloads after MSG and HMSG lines."""
    start = 0
    while start < len(data):
        end = data.find(CRLF, start) % (len(data) + 1)
        line = data[start:end]
        start = end + len(CRLF)
        if line:
            yield f"[{_text(_bare(line))}]"
        size = line.rpartition(b" ")[2] if line.startswith(MESSAGES) else b""
        if size.isdigit():
            yield from _payload(data[start : start + int(size)])
            start += int(size) + len(CRLF)


def _bare(line: bytes) -> bytes:
    """Return a line without the `+` of `+OK` and the quotes of an error."""
    if line.startswith(b"-ERR "):
        return b"-ERR " + line[5:].removeprefix(b"'").removesuffix(b"'")
    return line.removeprefix(b"+")


def _payload(data: bytes) -> Iterator[str]:
    if data:
        more = "..." if len(data) > TEXT_BYTES else ""
        text = data[:TEXT_BYTES].decode(errors="backslashreplace") + more
        yield f"MSG_PAYLOAD: [{json.dumps(text, ensure_ascii=False)}]"


def _text(field: object, *, bytes_max: int = TEXT_BYTES) -> str:
    """Return a field as one printable line."""
    text = field.decode(errors="backslashreplace") if isinstance(field, bytes) else str(field)
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text[:bytes_max])
