"""
Measure the event bus on Kafka against its goals, and beside a bare confluent-kafka loop.

One process and one real broker on this machine, envelopes with a payload of 256 bytes, of
1000 aggregates, acks=all and an idempotent producer on both sides. The bare loop does what
a program without the bus would do: encode the event, produce it with its key and headers,
count the delivery reports; take records, decode them, commit. They take turns, so that
other load on the machine affects both. Run it with `make bench-kafka`.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import busloads
from benchmarks.command import begin, command_line, write_json
from penstock.bench.report import machine
from penstock.bench.report.ratios import VERDICTS
from penstock.bench.scenarios.turns import say
from penstock.bus import BusConfig, load_config
from penstock.bus.engines.kafka.properties import consumer as consumer_properties
from penstock.bus.engines.kafka.properties import producer as producer_properties
from penstock.bus.engines.kafka.window import envelope_headers
from penstock.bus.events.codec import Codec
from penstock.bus.testing.kafka import KafkaBroker
from penstock.protocol.tables import markdown

PARTITIONS = 4
POLL_EVERY = 256
RATIO_MIN = 0.6
JAVA_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC")


@dataclass
class Goal:
    """One measurement on both sides, and the goal for ours."""

    work: str
    ours: Callable[[BusConfig, int], Any]
    bare: Callable[[BusConfig, int], float]
    messages: int
    per_s: int


@dataclass
class Row:
    """One line of the table."""

    work: str
    ours: float
    bare: float
    ratio: float
    goal: int

    def cells(self) -> list[str]:
        """Return the line as text."""
        met, close = VERDICTS[self.ours >= self.goal], VERDICTS[self.ratio >= RATIO_MIN]
        return [
            self.work,
            f"{self.ours:,.0f}/s",
            f">= {self.goal:,}: {met}",
            f"{self.bare:,.0f}/s",
            f"{self.ratio:.2f}",
            f">= {RATIO_MIN}: {close}",
        ]


def bare_publish(config: BusConfig, count: int) -> float:
    """Return records per second, from the first call to the last ack."""
    name = _topic(config)
    producer = Producer(producer_properties(config))
    batch = busloads.events(count)
    with busloads.without_collector():
        started_s = time.perf_counter()
        acked = _produce(producer, name, batch)
        producer.flush()
        assert acked() == count
        return count / (time.perf_counter() - started_s)


def bare_end_to_end(config: BusConfig, count: int) -> float:
    """Return records per second, from the first call to the last commit of a decoded record."""
    name = _topic(config)
    producer = Producer(producer_properties(config))
    consumer = Consumer(consumer_properties(config, f"{name}.group"))
    consumer.subscribe([name])
    while not consumer.assignment():
        consumer.poll(0.05)
    batch, decode, left = busloads.events(count), Codec().decode, count
    with busloads.without_collector():
        started_s = time.perf_counter()
        _produce(producer, name, batch)
        while left:
            messages = consumer.consume(config.kafka.consumer.fetch_batch, timeout=0.01)
            for message in messages:
                decode(message.value())
            producer.poll(0)
            if messages:
                consumer.store_offsets(message=messages[-1])
                consumer.commit(asynchronous=True)
            left -= len(messages)
        producer.flush()
        consumer.commit(asynchronous=False)
        rate = count / (time.perf_counter() - started_s)
    consumer.close()
    return rate


def _produce(producer: Producer, name: str, batch: list[Any]) -> Callable[[], int]:
    """Produce all records; return a function that returns the number acked."""
    encode, produce, acked = Codec().encode, producer.produce, 0

    def delivered(error: Any, record: Any) -> None:
        nonlocal acked
        assert error is None, error
        acked += 1

    for number, envelope in enumerate(batch):
        payload, headers = encode(envelope), envelope_headers(envelope)
        while True:
            try:
                produce(
                    name, payload, envelope.aggregate_id, on_delivery=delivered, headers=headers
                )
                break
            except BufferError:
                producer.poll(0.001)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    return lambda: acked


def _topic(config: BusConfig) -> str:
    name = f"bare-{time.monotonic_ns()}"
    admin = AdminClient({"bootstrap.servers": ",".join(config.kafka.brokers)})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    while name not in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)
    return name


GOALS = [
    Goal("asynchronous publish", busloads.publish, bare_publish, 200_000, 50_000),
    Goal("end to end, 1000 aggregates", busloads.end_to_end, bare_end_to_end, 100_000, 30_000),
]


def measure(goal: Goal, config: BusConfig, *, scale: int, rounds: int) -> Row:
    """Run both sides in turns; the medians count."""
    count = goal.messages // scale
    ours, bare, ratios = [], [], []
    for _ in range(rounds):
        ours.append(asyncio.run(goal.ours(config, count)))
        gc.collect()
        bare.append(goal.bare(config, count))
        ratios.append(ours[-1] / bare[-1])
        say(f"{goal.work}: {ours[-1]:,.0f}/s, bare {bare[-1]:,.0f}/s")
    return Row(goal.work, median(ours), median(bare), median(ratios), goal.per_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; a missed goal is a figure, not a failure."""
    quick = "run a tenth of the messages, one round"
    parser = command_line("benchmarks.kafka", __doc__, quick=quick)
    parser.add_argument("--broker", metavar="HOST:PORT", help="use a running broker")
    options = begin(parser, arguments)
    scale = 10 if options.quick else 1
    if options.broker:
        rows = _run(options.broker, scale=scale, rounds=options.rounds)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-") as directory,
            KafkaBroker(directory, java_options=JAVA_OPTIONS) as broker,
        ):
            rows = _run(broker.address, scale=scale, rounds=options.rounds)
    titles = ["work", "event bus", "goal", "bare loop", "ratio", "goal"]
    cells = [row.cells() for row in rows]
    print(f"{machine.describe()}\n\n{markdown(titles, cells, left=len(titles))}")
    write_json(options, [vars(row) for row in rows])
    return 0


def _run(broker: str, *, scale: int, rounds: int) -> list[Row]:
    config = load_config({}, preset="high_throughput", environment={})
    config = replace(config, type="kafka", kafka=replace(config.kafka, brokers=(broker,)))
    for goal in GOALS:  # a broker compiles its hot code right after the start
        asyncio.run(goal.ours(config, goal.messages // 20))
        goal.bare(config, goal.messages // 20)
    return [measure(goal, config, scale=scale, rounds=rounds) for goal in GOALS]


if __name__ == "__main__":
    sys.exit(main())
