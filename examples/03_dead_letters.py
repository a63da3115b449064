"""
Dead letters: an event that cannot be handled is set aside with its history, and replayed
later.

From a shell: penstock dlq list|show|replay|discard --bus nats://…

Output:
    dead letter of account-1: KeyError: 'iban'
      attempt 1: KeyError: 'iban'
      attempt 2: KeyError: 'iban'
    paid: account-2
    paid: account-1
    dead letters left: 0
"""

import asyncio
from typing import Any

from penstock.bus import DeadLetterBox, Envelope, EventBus, Selection, SubscriberConfig

FEW_ATTEMPTS = SubscriberConfig(max_attempts=2, backoff=0.01)
ibans = {"account-2": "DE02"}
paid: asyncio.Queue[str] = asyncio.Queue()


async def pay(event: Envelope[Any]) -> None:
    if event.aggregate_id not in ibans:
        raise KeyError("iban")
    paid.put_nowait(event.aggregate_id)


async def main() -> None:
    async with EventBus.open("embedded:", subscriber=FEW_ATTEMPTS) as bus:
        await bus.subscribe_envelope("payouts", pay)
        for account in ("account-1", "account-2"):
            event = Envelope(aggregate_id=account, event_type="PayOut", payload={"cents": 100})
            await bus.publish_envelope("payouts", event)
        first = await paid.get()  # account-1 blocks nobody
        async with bus.messages("dead-letters.payouts") as buried:
            await anext(buried)
        box = DeadLetterBox(bus)
        async for letter in box.find(Selection(key="account-1")):
            print(f"dead letter of {letter.key}: {letter.cause}")
            for number, attempt in enumerate(letter.attempts, 1):
                print(f"  attempt {number}: {attempt}")
        print(f"paid: {first}")

        ibans["account-1"] = "DE01"  # fix the cause
        await box.replay(Selection(key="account-1"))
        print(f"paid: {await paid.get()}")
        print(f"dead letters left: {len([one async for one in box.find()])}")


asyncio.run(main())
