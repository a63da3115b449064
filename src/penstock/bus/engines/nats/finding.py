"""Finding the buses on a server, and their services, by their streams and leases."""

from __future__ import annotations

from penstock.bus.engine import Membership
from penstock.bus.engines.nats.layout import Layout
from penstock.bus.engines.nats.lease import read
from penstock.client import JetStream
from penstock.errors import JetStreamError

OWN = "-own+"
OTHERS = ("-dead", "-leases")
"""The suffixes of the other streams of a namespace: dead letters, and leases."""


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


async def find_services(jetstream: JetStream, layout: Layout) -> dict[str, Membership]:
    """Return the members of each service of a bus; a stopped service has none."""
    try:
        info = await jetstream.streams.info(layout.lease_stream, subjects_filter=">")
    except JetStreamError as error:
        if error.is_not_found:
            return {}
        raise
    found = {}
    for subject in sorted(info["state"].get("subjects") or ()):
        message = await jetstream.streams.get(layout.lease_stream, last_by_subj=subject)
        written = read(message.payload)
        members = {name: len(slots) for name, slots in sorted(written.members.items())}
        if written.holder:
            members.setdefault(written.holder, 0)
        service = subject.removeprefix(layout.lease_subject(""))
        found[service] = Membership(leader=written.holder, members=members)
    return found
