"""Replies to requests, whenever they come."""

from __future__ import annotations

from typing import Any

import pytest
from tests.aio import asynchronous

from penstock.client.inbox import ReplyInbox
from penstock.client.options import ClientOptions
from penstock.errors import ConnectionLost


class Link:
    """What an inbox needs of a connection."""

    def __init__(self) -> None:
        self.options = ClientOptions()
        self.watchers: list[Any] = []
        self.publish_denied: list[Any] = []

    def subscribe(self, subject: bytes, receive: Any) -> None:
        self.receive = receive


@asynchronous
async def test_a_reply_that_comes_while_the_request_is_still_being_sent_is_not_lost() -> None:
    link = Link()
    inbox = ReplyInbox(link)  # type: ignore[arg-type]
    token, reply = inbox.open(b"asked")
    message = (b"MSG", reply, b"1", b"", 0, b"answer")
    link.receive([message, message])

    assert message == await inbox.reply(token, timeout_s=1.0)
    inbox.forget(token)
    link.receive([message])


@asynchronous
async def test_a_connection_that_closes_while_a_request_is_being_sent_fails_it() -> None:
    inbox = ReplyInbox(Link())  # type: ignore[arg-type]
    token, _ = inbox.open(b"asked")
    inbox.closed(ConnectionLost("gone"))

    with pytest.raises(ConnectionLost, match="gone"):
        await inbox.reply(token, timeout_s=1.0)
