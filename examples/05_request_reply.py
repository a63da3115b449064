"""
Request and reply: ask a service and wait for its answer, or for its error.

Output:
    6 / 2 = 3.0
    6 / 0: ZeroDivisionError: division by zero
    nobody answers `multiply`
"""

import asyncio
from typing import Any

from penstock.bus import EventBus
from penstock.errors import BusError, NoResponders


async def divide(numbers: Any) -> float:
    return float(numbers["number"] / numbers["by"])


async def main() -> None:
    async with EventBus.open("embedded:") as bus:
        bus.respond("divide", divide)
        print(f"6 / 2 = {await bus.request('divide', {'number': 6, 'by': 2})}")
        try:
            await bus.request("divide", {"number": 6, "by": 0})
        except BusError as error:
            print(f"6 / 0: {str(error).partition('answers: ')[2]}")
        try:
            await bus.request("multiply", {"number": 6, "by": 7})
        except NoResponders:
            print("nobody answers `multiply`")


asyncio.run(main())
