"""
Pull consumers: `fetch` asks for one batch, `consume` keeps asking.

A pull request names a number of messages and an expiry. Messages and status lines about the
request arrive at its reply subject. A message has a reply subject for its ack; a status
line has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Unpack

from penstock.client.connection.interest import Interest
from penstock.client.jetstream.api import Api, check_name
from penstock.client.jetstream.consume import (
    Consume,
    ConsumeOptions,
    ConsumeSettings,
    wanted,
)
from penstock.client.jetstream.pullrequests import PullRequests, nanoseconds, split
from penstock.client.jetstream.status import NextStep
from penstock.client.messages import Message
from penstock.errors import RequestTimeout
from penstock.hot.wire import Op

GRACE_S = 1.0
"""How long after the expiry of a request the server's expiry status may arrive."""


class PullConsumer:
    """
    A handle on one pull consumer.

    Its fetches share one inbox and take turns. So a message too late for one fetch is not
    lost: it starts the next one.
    """

    def __init__(self, api: Api, stream: str, consumer: str) -> None:
        self.stream = check_name(stream, "stream")
        self.consumer = check_name(consumer, "consumer")
        self._api = api
        self._client = api.client
        self._loop = asyncio.get_running_loop()
        self._requests = self._new_requests()
        self._interest: Interest | None = None
        self._turn = asyncio.Lock()
        self._operations: deque[Op] = deque()
        self._batch = 0
        self._batch_max = 0
        self._error: Exception | None = None
        self._heard_s = 0.0
        self._done = asyncio.Event()

    async def info(self) -> dict[str, Any]:
        """Return the consumer's configuration and state."""
        return await self._api.call(f"CONSUMER.INFO.{self.stream}.{self.consumer}")

    async def fetch(
        self,
        batch: int,
        *,
        expires_s: float = 5.0,
        heartbeat_s: float = 0.0,
        bytes_max: int = 0,
        no_wait: bool = False,
    ) -> list[Message]:
        """Return up to `batch` messages that arrive before `expires_s`, possibly none."""
        request: dict[str, Any] = {"expires": nanoseconds(expires_s)}
        if no_wait:
            request = {"no_wait": True}
        if heartbeat_s:
            request["idle_heartbeat"] = nanoseconds(heartbeat_s)
        if bytes_max:
            request["max_bytes"] = bytes_max
        async with self._turn:
            deadline_s = self._loop.time() + expires_s
            if len(self._operations) < batch and await self._connected(deadline_s):
                await self._pull(batch, request)
                await self._wait(deadline_s + GRACE_S, 2 * heartbeat_s)
            return self._take(batch)

    def consume(self, **settings: Unpack[ConsumeSettings]) -> Consume:
        """Keep messages coming. `settings` are those of `ConsumeOptions`."""
        return Consume(self._client, self._new_requests(), ConsumeOptions(**settings))

    async def close(self) -> None:
        """Leave the inbox. Fetched messages can still be acked."""
        if self._interest is not None:
            self._client.connection.unsubscribe(self._interest)
            self._client.connection.watchers.remove(self)
            self._interest = None

    async def __aenter__(self) -> PullConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def disconnected(self, error: Exception) -> None:
        """End the fetch with the messages it has: the server has forgotten the request."""
        self._done.set()

    def reconnected(self) -> None:
        """Do nothing: the next fetch makes a new request."""

    def closed(self, error: Exception) -> None:
        """Fail the fetch: nothing more will arrive."""
        self._error = error
        self._done.set()

    def _new_requests(self) -> PullRequests:
        inbox = f"{self._client.new_inbox()}.".encode()
        return PullRequests(self._api.prefix, self.stream, self.consumer, inbox)

    async def _connected(self, deadline_s: float) -> bool:
        """Wait for a server: a request buffered for later would ask for too much."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._client.connection.connected.wait()
        except TimeoutError:
            return False
        return True

    async def _pull(self, batch: int, request: dict[str, Any]) -> None:
        if self._interest is None:
            self._interest = self._client.connection.subscribe(
                self._requests.inbox + b"*", self._receive
            )
            self._client.connection.watchers.append(self)
        self._batch, self._error = batch, None
        self._batch_max = max(self._batch_max, batch)
        self._heard_s = self._loop.time()
        self._done.clear()
        body = self._requests.ask(batch - len(self._operations), **request)
        await self._client.send(self._requests.subject, body, reply=self._requests.reply)

    async def _wait(self, deadline_s: float, silence_s_max: float) -> None:
        """Return when the batch is full, the request is over, or the server goes silent."""
        while not self._done.is_set():
            until_s = deadline_s
            if silence_s_max:
                until_s = min(deadline_s, self._heard_s + silence_s_max)
            if self._loop.time() >= until_s:
                if until_s < deadline_s:
                    self._error = RequestTimeout("fetch: the server's heartbeats stopped")
                return
            try:
                async with asyncio.timeout_at(until_s):
                    await self._done.wait()
            except TimeoutError:
                continue

    def _take(self, batch: int) -> list[Message]:
        if not self._operations and self._error is not None:
            raise self._error
        client, operations = self._client, self._operations
        if len(operations) > batch:
            return [Message(client, operations.popleft()) for _ in range(batch)]
        messages = [Message(client, operation) for operation in operations]
        operations.clear()
        return messages

    def _receive(self, operations: list[Op]) -> None:
        self._heard_s = self._loop.time()
        messages, statuses = split(operations)
        self._operations.extend(
            wanted(self._client, messages, len(self._operations), self._batch_max)
        )
        self._read_statuses(statuses)
        if len(self._operations) >= self._batch:
            self._done.set()

    def _read_statuses(self, statuses: list[Op]) -> None:
        for status in statuses:
            # A status line about an earlier request is too late to matter.
            if status[1] != self._requests.reply:
                continue
            outcome, error = self._requests.read(status)
            if outcome in (NextStep.FAILED, NextStep.GONE):
                self._error = error
            if outcome is not NextStep.ALIVE:
                self._done.set()
