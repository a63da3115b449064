"""What a status line says about a pull request."""

from __future__ import annotations

from enum import Enum

from penstock.client.messages import read_number, status_of
from penstock.errors import ApiError, ClientError, JetStreamError, NoResponders
from penstock.hot.wire import Op
from penstock.protocol import headers as header_block


class Outcome(Enum):
    """What to do next."""

    ALIVE = "the request still stands"
    OVER = "the request is over: ask again when more is wanted"
    GONE = "whoever had the request is gone: ask again in a moment"
    FAILED = "asking again will not help"


OVER_TEXTS = ("batch completed", "message size exceeds maxbytes")
GONE_TEXTS = ("leadership change", "server shutdown", "interest expired", "requests pending")


def read_status(operation: Op) -> tuple[Outcome, Exception]:
    """Return what to do, and the error to raise if that is not done."""
    code, description = status_of(operation)
    if not code:
        return Outcome.FAILED, ClientError("a pull was answered by neither message nor status")
    error = JetStreamError(ApiError(code, 0, description))
    text = description.lower()
    if code == 100:
        return Outcome.ALIVE, error
    if code == 503:
        return Outcome.GONE, NoResponders("the consumer does not answer; hint: does it exist?")
    if text.startswith(GONE_TEXTS):
        return Outcome.GONE, error
    if code in (404, 408) or (code == 409 and text.startswith(OVER_TEXTS)):
        return Outcome.OVER, error
    return Outcome.FAILED, error


def unfilled(operation: Op) -> int:
    """Return how many messages of its request will not come."""
    value = header_block.get(operation[5][: operation[4]], b"Nats-Pending-Messages")
    return read_number(value.decode(errors="replace")) if value else 0
