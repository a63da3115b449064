"""Acting on many things at once without changing the order of any key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Failure(NamedTuple):
    """An item that failed, and why. Nothing behind it of the same key was tried."""

    item: object
    error: Exception


async def in_order_by_key(
    items: Iterable[T], *, key: Callable[[T], str], act: Callable[[T], Awaitable[object]]
) -> tuple[list[T], list[Failure]]:
    """
    Act on all items, and return those done and those that failed.

    Items of one key run one after another, different keys run concurrently. A key
    stops at its first failure, so that nothing overtakes an item that must be tried again.
    """
    chains: dict[str, list[T]] = {}
    for item in items:
        chains.setdefault(key(item), []).append(item)
    done: list[T] = []
    failures: list[Failure] = []

    async def work_off(chain: list[T]) -> None:
        for item in chain:
            try:
                await act(item)
            except Exception as error:
                failures.append(Failure(item, error))
                return
            done.append(item)

    async with asyncio.TaskGroup() as tasks:
        for chain in chains.values():
            tasks.create_task(work_off(chain))
    return done, failures
