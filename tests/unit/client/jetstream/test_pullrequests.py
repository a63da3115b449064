"""Pull requests: what is sent, and what may still come."""

from __future__ import annotations

import json

import pytest

from penstock.client.jetstream.pullrequests import PullRequests, nanoseconds, split
from penstock.client.jetstream.status import NextStep
from penstock.errors import JetStreamError, NoResponders
from penstock.hot.wire import MSG, Op

ACK = b"$JS.ACK.S.C.1.1.1.1.0"


@pytest.fixture
def requests() -> PullRequests:
    return PullRequests("$JS.API", "S", "C", b"_INBOX.a.")


def status(line: bytes, pending: int | None = None) -> Op:
    block = b"NATS/1.0 " + line + b"\r\n"
    if pending is not None:
        block += b"Nats-Pending-Messages: %d\r\n" % pending
    block += b"\r\n"
    return (MSG, b"_INBOX.a.1", b"1", b"", len(block), block)


def message(reply: bytes) -> Op:
    return (MSG, b"orders", b"1", reply, 0, b"payload")


def test_a_request_names_its_batch_and_its_options(requests: PullRequests) -> None:
    body = requests.ask(5, expires=nanoseconds(1.5), group="g")

    assert json.loads(body) == {"batch": 5, "expires": 1_500_000_000, "group": "g"}
    assert requests.subject == b"$JS.API.CONSUMER.MSG.NEXT.S.C"


def test_each_request_has_a_reply_subject_of_its_own(requests: PullRequests) -> None:
    replies = []
    for _ in range(3):
        requests.ask(1)
        replies.append(requests.reply)

    assert replies == [b"_INBOX.a.1", b"_INBOX.a.2", b"_INBOX.a.3"]


def test_outstanding_is_what_requests_may_still_bring(requests: PullRequests) -> None:
    requests.ask(5)
    requests.ask(3)
    assert requests.outstanding == 8

    requests.arrived(2)
    assert requests.outstanding == 6

    requests.forget()
    assert requests.outstanding == 0


def test_a_server_that_sends_too_much_leaves_nothing_outstanding(requests: PullRequests) -> None:
    requests.ask(2)
    requests.arrived(9)

    assert requests.outstanding == 0


@pytest.mark.parametrize(
    "line", [b"404 No Messages", b"408 Request Timeout", b"409 Batch Completed"]
)
def test_a_request_that_is_over_brings_no_more(requests: PullRequests, line: bytes) -> None:
    requests.ask(5)

    outcome, _ = requests.read(status(line, pending=4))

    assert (outcome, requests.outstanding) == (NextStep.OVER, 1)


def test_a_heartbeat_changes_nothing(requests: PullRequests) -> None:
    requests.ask(5)

    outcome, _ = requests.read(status(b"100 Idle Heartbeat"))

    assert (outcome, requests.outstanding) == (NextStep.ALIVE, 5)


@pytest.mark.parametrize(
    ("line", "expected", "kind"),
    [
        (b"503", NextStep.GONE, NoResponders),
        (b"409 Leadership Change", NextStep.GONE, JetStreamError),
        (b"409 Consumer Deleted", NextStep.FAILED, JetStreamError),
    ],
)
def test_what_ends_requests_is_the_error_to_raise(
    requests: PullRequests, line: bytes, expected: NextStep, kind: type[Exception]
) -> None:
    outcome, error = requests.read(status(line))

    assert (outcome, type(error)) == (expected, kind)


def test_a_message_has_a_reply_subject_and_a_status_has_none() -> None:
    heartbeat = status(b"100 Idle Heartbeat")

    assert split([message(ACK), heartbeat, message(ACK)]) == (
        [message(ACK), message(ACK)],
        [heartbeat],
    )
