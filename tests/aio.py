"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
from collections.abc import Awaitable, Callable
from typing import Any

from tests.servers import DEADLINE_S

TEST_TIMEOUT_S = float(os.environ.get("TEST_TIMEOUT_S", "60"))
"""Long forms of tests are given more."""


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine function as a test, and fail it if it leaves a task behind."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(_without_leaks(test(*arguments, **fixtures)))
        # What was left unclosed warns when it is collected, and a warning is an error.
        gc.collect()

    return run


async def _without_leaks(test: Awaitable[None]) -> None:
    async with asyncio.timeout(TEST_TIMEOUT_S):
        await test
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        # asyncio accepts connections in tasks of its own, which end in a moment.
        _, left = await asyncio.wait(left, timeout=0.1)
    assert not left, left


async def until(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> None:
    """Return once the condition is true; fail when it does not come true in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (the condition is in another process)
            await asyncio.sleep(0.002)
