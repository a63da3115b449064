"""
The one member of the consumer group, on a thread of its own.

The thread does as little as it can: it takes messages when the bus asks for some, and
hands them to the loop, where all state is. While the bus asks for nothing, because too
much is being handled, every partition is paused and the thread goes on polling: so
librdkafka sees that it is alive, and the group can be rebalanced, for as long as it
takes.

The group subscribes to every topic of the namespace, and partitions that nobody here
listens to are paused. So a handler that comes late resumes them, and no partition
moves because of it. The thread itself looks for topics, and subscribes to them by name. With a
pattern librdkafka would look, and join anew with each one it finds, also while it is being
given its first name in the group: it takes another name then, and all members wait for the
bearer of the first until its session runs out.

A partition whose first message is stuck is paused too, once much is
done behind it: none of that can be committed, and a crash would repeat it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.bus.engines.kafka.layout import KafkaLayout
from penstock.bus.engines.kafka.properties import (
    Properties,
    checked,
    library_logger,
    logger,
    text_of,
)

Place: TypeAlias = tuple[str, int]
"""A partition: name of the topic, and number."""

REST_S = 0.2
"""How long nobody may ask before partitions are paused."""
POLL_S = 0.05
RETRY_S = 0.1
REFRESH_S_MAX = 5.0
LEAVING_S_MAX = 10.0
LEAVING_AWAY_S_MAX = 1.0
"""The longest time to leave the group, if brokers can be reached and if they cannot."""


class Listener(NamedTuple):
    """Callbacks for events of the reader. All run on the event loop."""

    messages: Callable[[list[Message]], None]
    assigned: Callable[[list[Place]], None]
    taken: Callable[[list[Place]], Coroutine[Any, Any, list[TopicPartition]]]
    """Lets go of partitions; returns up to where they are settled."""
    failed: Callable[[KafkaError], None]


class Reader:
    """Takes messages as a member of the group."""

    def __init__(
        self,
        properties: Properties,
        layout: KafkaLayout,
        listener: Listener,
        *,
        handover_s: float,
        discovery_s: float,
    ) -> None:
        self._layout = layout
        self._listener = listener
        self._handover_s = handover_s
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[int | Callable[[], None] | None] = queue.SimpleQueue()
        self._patterns: tuple[str, ...] = ()
        self._settled: deque[TopicPartition] = deque()
        self._paused: set[Place] = set()
        self._stuck: set[Place] = set()
        self._left_at: dict[Place, int] = {}
        """Where we stood in partitions that were taken, and could not commit it."""
        self._topics: set[str] = set()
        self._discovery_s = discovery_s
        self._look_s = 0.0
        self._is_resting = False
        self._is_sorted_out = True
        """Whether the partitions are paused and resumed as they should be."""
        self._is_closing = False
        self.committed: dict[Place, int] = {}
        """Up to where each partition is committed, as far as this process has heard."""
        self.consumer = checked(
            lambda: Consumer(
                properties | {"error_cb": self._failed, "on_commit": self._heard},
                logger=library_logger,
            )
        )
        self._thread = threading.Thread(target=self._run, name="penstock-kafka", daemon=True)
        self._thread.start()

    def ask(self, messages_max: int) -> None:
        """Have the thread take messages; `listener.messages` is called once, maybe with none."""
        self._orders.put(messages_max)

    def listen(self, patterns: tuple[str, ...]) -> None:
        """Read the topics of these patterns, and no others."""

        def change() -> None:
            self._patterns = patterns
            self._sort_out()

        self._orders.put(change)
        self.refresh()

    def hold(self, place: Place, is_stuck: bool) -> None:
        """Read a partition no more, or again."""

        def change() -> None:
            (self._stuck.add if is_stuck else self._stuck.discard)(place)
            self._sort_out()

        self._orders.put(change)

    def refresh(self) -> None:
        """Look for new topics now."""

        def hurry() -> None:
            self._look_s = 0.0

        self._orders.put(hurry)

    def store(self, offset: TopicPartition) -> None:
        """Have the thread remember where to go on, for the next commit."""
        # Not here: librdkafka would give the interpreter away, and the loop had to wait for it.
        self._settled.append(offset)

    async def commit(self) -> None:
        """Return once everything stored so far is committed."""
        while not await self._committing():  # noqa: ASYNC110  (librdkafka tells nobody)
            await asyncio.sleep(RETRY_S)

    async def _committing(self) -> bool:
        """Commit, and return whether all that is stored is committed now."""
        done: asyncio.Future[bool] = self._loop.create_future()

        def heard(is_committed: bool) -> None:
            if not done.done():
                done.set_result(is_committed)

        def commit() -> None:
            self._tell(heard, self._commit())

        self._orders.put(commit)
        return await done

    def stop(self, *, is_away: bool = False) -> None:
        """Commit, leave the group, and end the thread. Blocks, but not for ever."""
        self._is_closing = True
        self._orders.put(None)
        leaving_s = LEAVING_AWAY_S_MAX if is_away else LEAVING_S_MAX
        self._thread.join(leaving_s)
        if self._thread.is_alive():
            # Librdkafka may wait for an answer that does not come, as in a rebalance.
            logger.warning("! the group was not left in %s s; its session runs out", leaving_s)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._work()
                except BaseException:
                    # This thread is the only one that reads: nothing may end it but `stop`.
                    logger.exception("! reading from Kafka")
                    time.sleep(RETRY_S)
        finally:
            self._store()
            self._close()

    def _close(self) -> None:
        try:
            self.consumer.close()
        except KafkaException as error:
            logger.info("= leaving the group: %s", text_of(error))

    def _work(self) -> None:
        self._store()
        self._look()
        try:
            order = self._orders.get(timeout=0.001 if self._is_resting else REST_S)
        except queue.Empty:
            self._rest(True)
            self._hand_over(self._poll(POLL_S))
            return
        if order is None:
            return
        if isinstance(order, int):
            self._take(order)
        else:
            order()

    def _take(self, messages_max: int) -> None:
        messages: list[Message] = []
        try:
            self._rest(False)
            messages = self._poll(POLL_S)
            if messages and messages_max > 1:
                messages += self.consumer.consume(messages_max - 1, timeout=0)
        finally:
            self._tell(self._listener.messages, messages)

    def _poll(self, timeout_s: float) -> list[Message]:
        # `consume` alone would wait for as many as it may return.
        message = self.consumer.poll(timeout_s)
        return [] if message is None else [message]

    def _hand_over(self, messages: list[Message]) -> None:
        if messages:
            self._tell(self._listener.messages, messages)

    def _rest(self, is_resting: bool) -> None:
        if is_resting is not self._is_resting or not self._is_sorted_out:
            self._is_resting = is_resting
            self._sort_out()

    def _sort_out(self) -> None:
        """Pause and resume partitions: those nobody listens to, those that are stuck, or all."""
        self._is_sorted_out = False  # librdkafka may refuse something: then again
        wanted = {(one.topic, one.partition) for one in self.consumer.assignment()}
        paused = {place for place in wanted if self._is_resting or not self._is_listened(place)}
        paused |= self._stuck & wanted
        self._paused &= wanted
        if paused - self._paused:
            self.consumer.pause(_partitions(paused - self._paused))
        if self._paused - paused:
            self.consumer.resume(_partitions(self._paused - paused))
        self._paused = paused
        self._is_sorted_out = True

    def _is_listened(self, place: Place) -> bool:
        return any(self._layout.matches(pattern, place[0]) for pattern in self._patterns)

    def _look(self) -> None:
        """Subscribe to the topics that are new, if it is time to look for them."""
        now_s = time.monotonic()
        if now_s < self._look_s or (self._topics and not self.consumer.memberid()):
            return
        self._look_s = now_s + self._discovery_s
        try:
            topics = self.consumer.list_topics(timeout=REFRESH_S_MAX).topics
        except KafkaException as error:
            logger.info("= topics cannot be listed: %s", error.args[0].str())
            return
        # One that is gone stays: it may come again, and a broker that starts may not know of it.
        found = {name for name in topics if self._layout.matches(">", name)} | self._topics
        if found != self._topics:
            self._subscribe(found)
            self._topics = found

    def _subscribe(self, topics: set[str]) -> None:
        self.consumer.subscribe(
            sorted(topics),
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            consumer.incremental_assign(self._continued(partitions))
            if self._is_closing:
                return  # they are about to be given back, and cannot be asked about
            self._tell(self._listener.assigned, _places(partitions))
            self._sort_out()
        except KafkaException as error:
            # Raised from here it would end the thread, or a closing that waits for it.
            logger.info("= partitions were assigned too late: %s", text_of(error))

    def _continued(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """
        Go on where we stood in the partitions that come back, or where others have come since.

        A group can lose all its partitions in an instant: when a commit meets a rebalance, or a
        broker dies in the middle of one. They come back one after another, as brokers find their
        topics. What was handled since the last commit is known here.
        """
        left_at = self._left_at  # kept: they may be lost again before anything comes of them
        back = {(one.topic, one.partition): one for one in partitions}
        back = {place: one for place, one in back.items() if place in left_at}
        if back:
            for committed in self._committed(list(back.values())):
                place = committed.topic, committed.partition
                back[place].offset = max(committed.offset, left_at[place])
                self.store(back[place])
        return partitions

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return how far the group is, once it can be asked; nothing if the bus closes first."""
        while not self._is_closing:
            try:
                return self.consumer.committed(partitions, timeout=REFRESH_S_MAX)
            except KafkaException as error:
                library_logger.warning("! what is committed cannot be asked: %s", text_of(error))
                time.sleep(RETRY_S)
        return []

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Finish what runs, and commit, before another process gets the partitions."""
        settled = self._let_go(partitions)
        self._settled.extend(settled)
        if not self._commit():
            self._remember(settled)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Let go: others may have these partitions already, and what we say of them is void."""
        logger.warning("! %d partitions were lost, and others may have them", len(partitions))
        self._remember(self._let_go(partitions))

    def _remember(self, settled: list[TopicPartition]) -> None:
        self._left_at.update({(one.topic, one.partition): one.offset for one in settled})

    def _let_go(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        places = _places(partitions)
        self._paused -= set(places)
        if self._is_closing or not places:
            return []
        future = asyncio.run_coroutine_threadsafe(self._listener.taken(places), self._loop)
        try:
            return future.result(self._handover_s)
        except FutureTimeout:
            logger.warning(
                "! handlers took longer than %s s when partitions moved; others may handle the "
                "same messages meanwhile",
                self._handover_s,
            )
            return []

    def _store(self) -> None:
        while self._settled:
            try:
                self.consumer.store_offsets(offsets=[self._settled.popleft()])
            except KafkaException as error:
                logger.info("= an offset is not ours any more: %s", error.args[0].str())

    def _commit(self) -> bool:
        """Commit what is stored; return whether all of it is committed now."""
        self._store()
        try:
            committed = self.consumer.commit(asynchronous=False) or []
            self._heard(None, committed)
            errors = [one.error for one in committed if one.error is not None]
        except KafkaException as error:
            errors = [error.args[0]] if error.args[0].code() != KafkaError._NO_OFFSET else []
        if errors:
            logger.warning("! committing: %s", errors[0].str())
        return not errors

    def _heard(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Hear what is committed."""
        told = [one for one in partitions if error is None and one.error is None]
        self.committed.update({(one.topic, one.partition): one.offset for one in told})

    def _failed(self, error: KafkaError) -> None:
        self._tell(self._listener.failed, error)

    def _tell(self, function: Callable[[Any], None], value: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, value)
        except RuntimeError:
            self._is_closing = True  # the loop is gone


def _places(partitions: list[TopicPartition]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]


def _partitions(places: set[Place]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name, number in places]
