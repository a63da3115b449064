"""
Replays and delays: read a topic again from any point, and publish an event later.

Output:
    again, from the third on: 3 4 5
    again, of one key: 2 4
    copied into another topic: 5
    reminded after a while: call back
"""

import asyncio
from typing import Any

from penstock.bus import Envelope, EventBus
from penstock.bus.delays import Delays
from penstock.bus.replaying import Replay

reminders: asyncio.Queue[str] = asyncio.Queue()


async def remind(event: Envelope[Any]) -> None:
    reminders.put_nowait(event.payload)


async def main() -> None:
    async with EventBus.open("embedded:") as bus, Delays(bus) as delays:
        await bus.subscribe_envelope("reminders", remind)
        reminder = Envelope(aggregate_id="me", event_type="Reminder", payload="call back")
        await delays.publish("reminders", reminder, delay_s=0.2)

        events = [
            Envelope(aggregate_id=f"key-{number % 2}", event_type="Counted", payload=number)
            for number in (1, 2, 3, 4, 5)
        ]
        receipts = await bus.publish_envelope_batch("counts", events)
        later = [
            event.payload async for _, event in Replay(bus, "counts", sequence=receipts[2].sequence)
        ]
        even = [event.payload async for _, event in Replay(bus, "counts", key="key-0")]
        print("again, from the third on:", *later)
        print("again, of one key:", *even)
        print("copied into another topic:", await Replay(bus, "counts").into_topic("copies"))
        print("reminded after a while:", await reminders.get())


asyncio.run(main())
