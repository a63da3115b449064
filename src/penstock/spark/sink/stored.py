"""
Rows that are sent a second time after the server has forgotten their ids.

JetStream remembers message ids for the stream's `duplicate_window`, two minutes by
default. A query that comes back after hours writes its last batch again, a task is
tried again late, or runs for long itself; and a connection breaks before the acks are
here, and there is no other for a while. Then the messages themselves are asked.

The rule is: what is sent at a time is known to be in the target or not for all that was
stored from the beginning of the batch until half a window ago. What is younger the
server remembers. So the target is read from the beginning of the batch, and from there
on again every half of the window, for as long as rows are sent.

The other half is what a server may take to store them. An ack that comes later proves
nothing: then it is looked whether the row is there twice, and if so, that is an error.

When a batch began is the time of its entry in the checkpoint: see `checkpoint`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from penstock.errors import ClientError
from penstock.protocol.subjects import matches
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions, SourceOptions
from penstock.spark.patience import Patience, persistently
from penstock.spark.pool import lend
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Position, Range
from penstock.spark.source.stream import StreamState, first_at, state_of

T = TypeVar("T")
log = logging.getLogger(__name__)

CONNECTION_NAME = "penstock-spark-sink"
MESSAGE_ID = b"Nats-Msg-Id:"
FRESH_S = 0.5
"""A batch this young is within half of every window that is a second or longer."""
SHORTEST_S = 2 * FRESH_S
"""The shortest window for which the rule holds."""
LOOKS_MAX = 10
"""How often a target is looked at until a look is quick enough; each has less to read."""
CLOCK_SKEW_S = 60.0
"""How far the clocks of driver and server may differ."""


class TargetIds:
    """The ids in one stream, as of not long ago."""

    def __init__(self, options: ConnectionOptions, info: dict[str, Any], began_s: float) -> None:
        self.name, self.created = str(info["config"]["name"]), str(info["created"])
        self.ids: set[bytes] = set()
        self._subjects = [str(each).encode() for each in info["config"].get("subjects", ())]
        self.window_s = max(SHORTEST_S, int(info["config"].get("duplicate_window", 0)) / 1e9)
        self._retention = str(info["config"].get("retention", "limits"))
        self._options = options
        self._began_s = began_s
        self.known_s = began_s
        """Up to when it is known what was stored."""
        self._next: int | None = None
        """The first sequence that was not looked at."""

    def stores(self, subject: bytes) -> bool:
        """Tell whether the stream stores a subject."""
        return any(matches(pattern, subject) for pattern in self._subjects)

    def is_known(self, now_s: float) -> bool:
        """Tell whether the server remembers all that came since it was looked at."""
        # Half of it, for what is under way when the last of it is over.
        return now_s - self.known_s < self.window_s / 2

    def look(self, now_s: float) -> None:
        """Read what came since it was last looked at."""
        if self._retention != "limits":
            self.known_s = now_s
            log.warning(
                "stream `%s` does not keep what was consumed, so that what is sent again later "
                "than its `duplicate_window` may be stored twice",
                self.name,
            )
            return
        state, whole = ask(self._options, lambda connection: self._since(connection, self._next))
        self.ids.update(self._read_ids(state, whole))
        self._next, self.known_s = state.last_sequence + 1, now_s

    def twice(self, ids: set[bytes]) -> list[bytes]:
        """Return which of these ids more than one message of the batch has."""
        if self._retention != "limits":
            return []
        state, whole = ask(self._options, lambda connection: self._since(connection, None))
        counts = Counter(each for each in self._read_ids(state, whole) if each in ids)
        return [each for each, count in counts.items() if count > 1]

    def _since(self, connection: Connection, first: int | None) -> tuple[StreamState, Range]:
        """Return what there is from a sequence on, or from the beginning of the batch."""
        state = state_of(self.name, connection.call(f"STREAM.INFO.{self.name}"))
        if first is None:
            since = datetime.fromtimestamp(self._began_s - CLOCK_SKEW_S, UTC)
            first = first_at(connection, state, Position("time", time=since))
        return state, Range(max(first, state.earliest), state.last_sequence)

    def _read_ids(self, state: StreamState, whole: Range) -> Iterator[bytes]:
        source = SourceOptions(stream=self.name, columns=("headers",), fail_on_data_loss=False)
        for batch in read_range(self._options, source, state.created, whole) if whole.size else ():
            for headers in batch.column("headers").to_pylist():
                yield from (
                    pair["value"].encode() for pair in headers if pair["key"] == "Nats-Msg-Id"
                )


class Late(NamedTuple):
    """A message whose ack came later than the server remembers what was stored before."""

    acked_s: float
    frame: bytes


class StoredRows:
    """Tells which rows of a batch are stored already, of those it is no duplicate of."""

    def __init__(
        self,
        options: ConnectionOptions,
        began_s: float,
        stream: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._began_s = began_s
        self._stream = stream
        self.clock = clock
        self.until_s = began_s + SHORTEST_S
        """Until when the server has to store what may be sent now."""
        self._targets: list[TargetIds] = []
        self._target_of: dict[bytes, TargetIds] = {}

    def left_out(self, frames: Iterable[bytes]) -> set[int]:
        """Return the positions of those that must not be sent; ask right before they are."""
        now_s = self.clock()
        if now_s - self._began_s < FRESH_S:
            return set()
        publishes = list(frames)
        targets = {subject: self.find(subject) for subject in set(map(_subject, publishes))}
        self._look(set(targets.values()))
        self.until_s = min(target.known_s + target.window_s for target in targets.values())
        if not any(target.ids for target in targets.values()):
            return set()
        return {
            index
            for index, frame in enumerate(publishes)
            if (found := _message_id(frame)) and found in targets[_subject(frame)].ids
        }

    def twice(self, late: Sequence[Late]) -> list[str]:
        """Return the ids of messages that are stored twice, of those that were acked late."""
        ids: dict[TargetIds, set[bytes]] = {}
        for acked_s, frame in late:
            target = self.find(_subject(frame))
            # While nothing was looked at yet, its window was not known either.
            if acked_s - self._began_s >= target.window_s:
                ids.setdefault(target, set()).add(_message_id(frame))
        return [each.decode() for target, sent in ids.items() for each in target.twice(sent)]

    def has_target(self, subject: bytes) -> bool:
        """Tell whether a stream stores a subject, or would if it had a leader; raise if none."""
        return self.find(subject).stores(subject)

    def _look(self, targets: set[TargetIds]) -> None:
        """Look until no look is too old: one that takes long says little about now."""
        for _ in range(LOOKS_MAX):
            old = [each for each in targets if not each.is_known(self.clock())]
            if not old:
                return
            for target in old:
                target.look(self.clock())
        raise ClientError(
            f"reading what is new in `{old[0].name}` takes longer than half of its "
            "`duplicate_window`, so that rows could be stored twice; hint: a longer one"
        )

    def find(self, subject: bytes) -> TargetIds:
        """Return the stream that stores a subject."""
        if subject not in self._target_of:
            known = (each for each in self._targets if self._stream or each.stores(subject))
            self._target_of[subject] = next(known, None) or self._open(subject)
        return self._target_of[subject]

    def _open(self, subject: bytes) -> TargetIds:
        def find(connection: Connection) -> dict[str, Any]:
            stream = self._stream or _stream_of(connection, subject.decode())
            return connection.call(f"STREAM.INFO.{stream}")

        self._targets.append(TargetIds(self._options, ask(self._options, find), self._began_s))
        return self._targets[-1]


def _stream_of(connection: Connection, subject: str) -> str:
    found = connection.call("STREAM.NAMES", {"subject": subject})
    if not found["streams"]:
        raise ClientError(
            f"no stream stores `{subject}`; hint: create one, check the column `subject`, or name "
            "the stream by the option `stream`"
        )
    return str(found["streams"][0])


def ask(options: ConnectionOptions, question: Callable[[Connection], T]) -> T:
    """Ask the server, and go on asking while it is away."""

    def attempt() -> T:
        with lend(options, CONNECTION_NAME) as connection:
            return question(connection)

    return persistently(Patience(options.retry_timeout_seconds), attempt)


def _subject(frame: bytes) -> bytes:
    return frame.split(b" ", 2)[1]


def _message_id(frame: bytes) -> bytes:
    """Return the id in the header block of a publish; empty if there is none."""
    line, _, rest = frame.partition(b"\r\n")
    if not line.startswith(b"HPUB "):
        return b""
    block = rest[: int(line.split()[-2])]
    _, found, value = block.partition(b"\r\n" + MESSAGE_ID)
    return value.partition(b"\r\n")[0].strip() if found else b""
