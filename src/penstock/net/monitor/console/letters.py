"""
Dead letters of a bus, as a user reads them, sends them back, or discards them.

The same as `penstock dlq` does, in terms of streams: the bus is not part of the server. A letter
goes back to the topic that its place on the dead-letter stream names; what its headers claim
does not matter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.client import Client
from penstock.errors import JetStreamError, PenstockError
from penstock.net.monitor.console.fields import Fields, text
from penstock.net.monitor.console.reading import describe
from penstock.net.monitor.console.signing import Refused, Visit

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]

LISTED_MAX = 300
LOOKED_AT_MAX = 2000
"""Many of the newest places may be empty: those letters were replayed or discarded."""
SHOWN_BYTES = 8 * 1024
PREFIX = "dead-letter-"
TOPIC, CUT = "Dead-Letter-Topic", "Dead-Letter-Cut"


async def listed(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Return the newest dead letters, the newest first."""
    bus, streams = text(fields, "bus"), visit.client.jetstream().streams
    state = (await streams.info(f"{bus}-dead"))["state"]
    found: list[Json] = []
    sequence = state["last_seq"]
    lowest = max(state["first_seq"], sequence - LOOKED_AT_MAX, 1)
    while sequence >= lowest and len(found) < LISTED_MAX:
        with suppress(JetStreamError):
            found.append(
                await describe(await streams.get(f"{bus}-dead", seq=sequence), SHOWN_BYTES)
            )
        sequence -= 1
    return {"letters": found, "total": state["messages"]}


async def replay(client: Client, bus: str, sequences: list[int]) -> Json:
    """Send letters back to their topics, in order; what went is deleted."""
    jetstream = client.jetstream()
    for done, sequence in enumerate(sorted(sequences)):
        try:
            letter = await jetstream.streams.get(f"{bus}-dead", seq=sequence)
            place = letter.subject.partition(".")[2]
            topic = _topic(place, dict(letter.header_pairs).get(TOPIC, ""))
            if CUT in dict(letter.header_pairs):
                raise Refused(409, f"letter {sequence} is kept in part; use `penstock dlq replay`")
            headers = [each for each in letter.header_pairs if _is_own(each[0])]
            # Sent back twice, it is stored once.
            headers.append(("Nats-Msg-Id", f"{topic}:replay:{place}:{sequence}"))
            subject = await _subject(client, bus, topic)
            await jetstream.publish(subject, letter.payload, headers=headers)
            await jetstream.streams.delete_message(f"{bus}-dead", sequence)
        except (PenstockError, Refused) as error:
            raise _after(done, sequence, error) from error
    return {"letters": len(sequences)}


async def discard(client: Client, bus: str, sequences: list[int]) -> Json:
    """Delete letters for good."""
    streams = client.jetstream().streams
    for done, sequence in enumerate(sorted(sequences)):
        try:
            await streams.delete_message(f"{bus}-dead", sequence)
        except PenstockError as error:
            raise _after(done, sequence, error) from error
    return {"letters": len(sequences)}


def _after(done: int, sequence: int, error: Exception) -> Refused:
    return Refused(409, f"{done} are done; letter {sequence}: {error}")


def _topic(place: str, claimed: str) -> str:
    """Return the topic of a place `<prefix>.<topic>`; the claim only tells how long it is."""
    if claimed and place.endswith(f".{claimed}"):
        return claimed
    return place.partition(".")[2]


async def _subject(client: Client, bus: str, topic: str) -> str:
    """Return the subject of a topic: of its own stream, if it has one."""
    own = f"{bus}-own.{topic}"
    names = await client.jetstream().streams.names(subject=own)
    return own if names else f"{bus}.{topic}"


def _is_own(name: str) -> bool:
    return not name.lower().startswith((PREFIX, "nats-"))
