"""What is particular to nats-py, in one place for the tests that use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from nats.aio.client import Client
from nats.js.errors import NoKeysError
from tests.servers import DEADLINE_S

Listed = TypeVar("Listed")
ATTEMPTS = 50


async def settle(*clients: Client) -> None:
    """Return once the server has done what the clients asked for."""
    for client in clients:
        # A flush may write its PING ahead of what is still buffered; the second one cannot.
        await client.flush()
        await client.flush()


async def listed(listing: Callable[[], Awaitable[Listed]]) -> Listed:
    """
    Return the keys or the history of a bucket that has some.

    nats-py takes a watch for empty when the first deliveries and the consumer's
    information come in one read, whichever the server; asking again is its remedy.
    """
    for _ in range(ATTEMPTS):
        try:
            return await listing()
        except NoKeysError:
            continue
    pytest.fail(f"no keys were found in {ATTEMPTS} attempts")


async def first_updates(watcher: Any, count: int) -> list[Any]:
    """Return the entries a watch starts with; its marker may come before them, as above."""
    updates = [await watcher.updates(timeout=DEADLINE_S) for _ in range(count + 1)]
    assert 1 == updates.count(None)
    return [entry for entry in updates if entry is not None]
