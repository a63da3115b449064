"""
Continuous consuming with overlapping pull requests.

A new request leaves as soon as the messages requested and the messages waiting here are
together fewer than half a batch. So the server always has a request to fill, and at most
one batch waits in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypedDict

from penstock.client.jetstream.api import CoreClient
from penstock.client.jetstream.pullrequests import PullRequests, nanoseconds, split
from penstock.client.jetstream.status import NextStep
from penstock.client.messages import Message
from penstock.config.setting import setting
from penstock.errors import ConfigError, ConnectionClosed, RequestTimeout, SlowConsumer
from penstock.hot.wire import Op

EMPTY_REQUESTS_MAX = 3
"""Consecutive empty requests that are repeated immediately."""

SURPLUS_BATCHES = 4
"""Batches accepted in excess: requests given up as lost may all be answered after all."""


def wanted(client: CoreClient, messages: list[Op], waiting: int, batch: int) -> list[Op]:
    """Return the messages that fit beside the waiting ones, so that no server fills our memory."""
    room = max(0, SURPLUS_BATCHES * batch - waiting)
    if len(messages) > room:
        client.connection.report(
            SlowConsumer(f"the server sent more messages than the {batch} requested")
        )
    return messages[:room]


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """How much to request, and how long to wait for a silent server."""

    batch: int = setting(500, "Maximum number of messages requested or waiting.")
    bytes_max: int = setting(0, "Maximum bytes per request; 0 is no limit.")
    expires_s: float = setting(30.0, "Lifetime of a request.")
    heartbeat_s: float = setting(5.0, "Time between the server's heartbeats.")
    gone_s_max: float = setting(10.0, "Time without a consumer before it is an error.")
    retry_wait_s: float = setting(0.25, "Wait before a retry while it is gone.")

    def __post_init__(self) -> None:
        if self.batch <= 0:
            raise ConfigError(f"`batch` must be positive: {self.batch}")
        if 2 * self.heartbeat_s > self.expires_s:
            raise ConfigError("`expires_s` must be at least twice `heartbeat_s`")


class ConsumeSettings(TypedDict, total=False):
    """The fields of `ConsumeOptions` as keywords."""

    batch: int
    bytes_max: int
    expires_s: float
    heartbeat_s: float
    gone_s_max: float
    retry_wait_s: float


class Consume:
    """Messages of a pull consumer as they arrive. Iterate, then `stop`."""

    def __init__(self, client: CoreClient, requests: PullRequests, options: ConsumeOptions) -> None:
        self._client = client
        self._requests = requests
        self._options = options
        self._threshold = options.batch // 2
        self._loop = asyncio.get_running_loop()
        self._operations: deque[Op] = deque()
        self._empty_requests = 0
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._heard_s = self._loop.time()
        self._gone_since_s: float | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._interest = client.connection.subscribe(
            requests.inbox + b"*", self._receive, ended=self._end
        )
        client.connection.watchers.append(self)
        self._watchdog = self._loop.call_later(2 * options.heartbeat_s, self._check_heartbeat)
        self._refill()

    @property
    def pending_messages(self) -> int:
        """The number of messages waiting to be taken."""
        return len(self._operations)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if not self._operations:
            await self._wait()
        operation = self._operations.popleft()
        if len(self._operations) + self._requests.outstanding <= self._threshold:
            self._refill()
        return Message(self._client, operation)

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Iterate over lists of all messages that have arrived: the cheapest way to take many."""
        while True:
            try:
                if not self._operations:
                    await self._wait()
            except StopAsyncIteration:
                return
            batch = [Message(self._client, operation) for operation in self._operations]
            self._operations.clear()
            self._refill()
            yield batch

    async def stop(self) -> None:
        """Request no more. Messages not taken are redelivered after their ack wait."""
        self._client.connection.unsubscribe(self._interest)

    async def __aenter__(self) -> Consume:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def disconnected(self, error: Exception) -> None:
        """Forget our requests: the server has forgotten them too."""
        self._requests.forget()

    def reconnected(self) -> None:
        """Request from the new server."""
        self._heard_s = self._loop.time()
        self._refill()

    def closed(self, error: Exception) -> None:
        """Do nothing: the interest has ended too, which is enough."""

    def _receive(self, operations: list[Op]) -> None:
        self._heard_s = self._loop.time()
        messages, statuses = split(operations)
        if messages:
            self._gone_since_s = None
            self._empty_requests = 0
            self._operations.extend(
                wanted(self._client, messages, len(self._operations), self._options.batch)
            )
            self._requests.arrived(len(messages))
            self._arrived.set()
        for status in statuses:
            outcome, error = self._requests.read(status)
            if outcome is NextStep.OVER:
                self._over()
            elif outcome is NextStep.GONE:
                self._gone(error)
            elif outcome is NextStep.FAILED:
                self._fail(error)

    def _over(self) -> None:
        """Request the missing messages again; after several empty requests, with a delay."""
        self._empty_requests += 1
        if self._empty_requests > EMPTY_REQUESTS_MAX:
            self._ask_later()

    def _refill(self) -> None:
        requests = self._requests
        waiting = requests.outstanding + len(self._operations)
        if waiting > self._threshold or self._ended or self._retry or not self._client.connected:
            return
        options = self._options
        limits = {"max_bytes": options.bytes_max} if options.bytes_max else {}
        body = requests.ask(
            options.batch - waiting,
            expires=nanoseconds(options.expires_s),
            idle_heartbeat=nanoseconds(options.heartbeat_s),
            **limits,
        )
        self._client.send_nowait(requests.subject, body, requests.reply, b"")

    def _gone(self, error: Exception) -> None:
        """Retry after a moment: an election or a restart takes seconds, a deletion is final."""
        now_s = self._loop.time()
        self._gone_since_s = self._gone_since_s or now_s
        if now_s - self._gone_since_s > self._options.gone_s_max:
            self._fail(error)
        elif self._retry is None:
            self._requests.forget()
            self._ask_later()

    def _ask_later(self) -> None:
        if self._retry is None and not self._ended:
            self._retry = self._loop.call_later(self._options.retry_wait_s, self._ask_again)

    def _ask_again(self) -> None:
        self._retry = None
        self._refill()

    def _check_heartbeat(self) -> None:
        silence_s = self._loop.time() - self._heard_s
        limit_s = 2 * self._options.heartbeat_s
        if silence_s >= limit_s and self._client.connected:
            self._client.connection.report(
                RequestTimeout(
                    f"`{self._requests.subject.decode()}`: heartbeats stopped, requesting again"
                )
            )
            self._requests.forget()
            self._heard_s = self._loop.time()
            self._refill()
        wait_s = max(limit_s - silence_s, limit_s / 4)
        self._watchdog = self._loop.call_later(wait_s, self._check_heartbeat)

    async def _wait(self) -> None:
        while not self._operations:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._client.connection.unsubscribe(self._interest)

    def _end(self, error: Exception | None) -> None:
        self._ended = True
        if error is not None and not isinstance(error, ConnectionClosed):
            self._error = error
        self._watchdog.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._client.connection.watchers.remove(self)
        self._arrived.set()
