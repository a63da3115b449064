"""Topics that are not stored, and requests, over core NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.bus.engine import Delivery, LiveReceiver, Responder
from penstock.bus.engines.nats.layout import topic_of
from penstock.bus.operate.failures import ENDINGS, describe, runs
from penstock.client import Client, Message
from penstock.client.connection.interest import Interest
from penstock.hot.wire import Op

ANSWER_S_MAX = 5.0
"""How long a closing bus still answers requests; the requester gives up by then."""


class Live:
    """Core NATS as one service uses it: of its processes one gets a message."""

    def __init__(self, client: Client, *, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._interests: set[Interest] = set()
        self._answers: set[asyncio.Task[None]] = set()

    def listen(self, subject: str, receive: LiveReceiver) -> Callable[[], None]:
        """Hand messages to `receive`, a read's worth at a time."""

        def deliver(operations: list[Op]) -> None:
            receive([_delivery(operation) for operation in operations])

        return self._listen(subject, deliver)

    def respond(self, subject: str, responder: Responder) -> Callable[[], None]:
        """Answer each request with what `responder` returns, or with its error."""
        loop = asyncio.get_running_loop()

        def answer(operations: list[Op]) -> None:
            for operation in operations:
                if operation[3]:
                    task = loop.create_task(_answer(Message(self._client, operation), responder))
                    self._answers.add(task)
                    task.add_done_callback(self._answers.discard)

        return self._listen(subject, answer)

    async def close(self) -> None:
        """Accept no more requests, and finish the pending ones while their sender still waits."""
        for interest in self._interests:
            self._client.unlisten(interest)
        if not self._answers:
            return
        _, late = await asyncio.wait(self._answers, timeout=ANSWER_S_MAX)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _listen(self, subject: str, receive: Callable[[list[Op]], None]) -> Callable[[], None]:
        interest = self._client.listen(subject, receive, queue=self._queue)
        self._interests.add(interest)

        def stop() -> None:
            self._interests.discard(interest)
            self._client.unlisten(interest)

        return stop


async def _answer(message: Message, responder: Responder) -> None:
    task = asyncio.current_task()
    try:
        reply = await responder(message.payload, message.header_pairs)
    except ENDINGS:
        raise
    except BaseException as error:
        if isinstance(error, GeneratorExit) and not runs(task):
            raise
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        text = " ".join(describe(error).split())
        await message.respond(headers=[("Bus-Error", text)])
    else:
        await message.respond(reply)


def _delivery(operation: Op) -> Delivery:
    topic = topic_of(operation[1].decode(errors="replace"))
    header_bytes, payload = operation[4], operation[5]
    return Delivery(topic, payload[header_bytes:], payload[:header_bytes])
