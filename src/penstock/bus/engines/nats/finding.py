"""Finding the buses on a server, by the streams they have made."""

from __future__ import annotations

from penstock.client import JetStream

OWN = "-own+"
OTHERS = ("-dead", "-leases")
"""How further streams of a namespace end: of dead letters, and of who reads."""


async def find_namespaces(jetstream: JetStream) -> list[str]:
    """Return the namespaces of all buses, sorted."""
    found = set()
    for info in await jetstream.streams.list():
        name = info["config"]["name"]
        if OWN in name:
            found.add(name.partition(OWN)[0])
        elif info["config"].get("subjects") == [f"{name}.>"]:
            suffix = next((one for one in OTHERS if name.endswith(one)), "")
            found.add(name.removesuffix(suffix))
    return sorted(found)
