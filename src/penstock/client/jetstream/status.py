"""The meaning of a status line about a pull request."""

from __future__ import annotations

from enum import Enum

from penstock.client.messages import read_number, status_of
from penstock.errors import ApiError, ClientError, JetStreamError, NoResponders
from penstock.hot.wire import Op
from penstock.protocol import headers as header_block


class NextStep(Enum):
    """The next step after a status line."""

    ALIVE = "the request is still open"
    OVER = "the request is over: make a new one when more is wanted"
    GONE = "the holder of the request is gone: try again in a moment"
    FAILED = "a retry will not help"


OVER_TEXTS = ("batch completed", "message size exceeds maxbytes")
GONE_TEXTS = ("leadership change", "server shutdown", "interest expired", "requests pending")


def read_status(operation: Op) -> tuple[NextStep, Exception]:
    """Return the next step, and the error to raise if the caller gives up instead."""
    code, description = status_of(operation)
    if not code:
        return NextStep.FAILED, ClientError(
            "the answer to a pull request is neither a message nor a status"
        )
    error = JetStreamError(ApiError(code, 0, description))
    text = description.lower()
    if code == 100:
        return NextStep.ALIVE, error
    if code == 503:
        return NextStep.GONE, NoResponders("the consumer does not answer; hint: does it exist?")
    if text.startswith(GONE_TEXTS):
        return NextStep.GONE, error
    if code in (404, 408) or (code == 409 and text.startswith(OVER_TEXTS)):
        return NextStep.OVER, error
    return NextStep.FAILED, error


def unfilled(operation: Op) -> int:
    """Return the number of messages of its request that will not come."""
    value = header_block.get(operation[5][: operation[4]], b"Nats-Pending-Messages")
    return read_number(value.decode(errors="replace")) if value else 0
