"""The advisory about an API request and its answer: `$JS.EVENT.ADVISORY.API`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.reports.clientinfo import client_info
from penstock.core.runs import new_message
from penstock.jetstream.advisories import ADVISORY

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.hot.wire import Op
    from penstock.jetstream.context import Context

TARGET = f"{ADVISORY}.API".encode()


def messages(
    context: Context, publisher: Session | None, subject: str, body: bytes, response: bytes
) -> list[Op]:
    """Return the advisory about a request and its answer, if anybody listens."""
    if publisher is None or not context.account.has_interest(TARGET):
        return []
    fields: dict[str, Any] = {
        "server": context.shared.server_name,
        "client": client_info(publisher),
        "subject": subject,
        "request": body.decode(errors="replace"),
        "response": response.decode(),
    }
    if not body:
        del fields["request"]
    return [new_message(TARGET, context.advisories.encode(ADVISORY, "api_audit", fields))]
