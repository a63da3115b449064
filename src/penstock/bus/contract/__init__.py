"""
The contract of the bus, as scenarios that any engine can be judged by.

A scenario is a coroutine function that takes a `World`, opens buses on it and
asserts. Its name is the fact it states. Nothing in here knows an engine:

    for scenario in SCENARIOS:
        asyncio.run(scenario(World(config)))
"""

from penstock.bus.contract import (
    deploying,
    failing,
    handling,
    keeping,
    operating,
    order,
    publishing,
    sharing,
)
from penstock.bus.contract.world import SCENARIOS, Scenario, World

__all__ = [
    "SCENARIOS",
    "Scenario",
    "World",
    "deploying",
    "failing",
    "handling",
    "keeping",
    "operating",
    "order",
    "publishing",
    "sharing",
]
