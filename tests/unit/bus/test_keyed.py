"""Keys go beside each other, each in order, and end at their first failure."""

from __future__ import annotations

import asyncio

from penstock.bus.keyed import in_order_by_key


def run(items: list[str], *, failing: str = "") -> tuple[list[str], list[object], list[str]]:
    acted: list[str] = []

    async def act(item: str) -> None:
        await asyncio.sleep(0)
        if item == failing:
            raise ValueError(item)
        acted.append(item)

    async def work() -> tuple[list[str], list[object], list[str]]:
        done, failures = await in_order_by_key(items, key=lambda item: item[0], act=act)
        return done, [failure.item for failure in failures], acted

    return asyncio.run(work())


def test_nothing_is_nothing() -> None:
    assert ([], [], []) == run([])


def test_each_key_keeps_its_order_and_keys_take_turns() -> None:
    done, failed, acted = run(["a1", "a2", "a3", "b1", "b2"])

    assert (["a1", "b1", "a2", "b2", "a3"], []) == (done, failed)
    assert done == acted


def test_nothing_of_a_key_overtakes_what_failed() -> None:
    done, failed, _ = run(["a1", "a2", "a3", "b1", "b2"], failing="a2")

    assert (["a1", "b1", "b2"], ["a2"]) == (done, failed)
