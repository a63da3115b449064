"""The event bus, held to its contract on a real broker of Kafka."""

from __future__ import annotations

import gc

import pytest
from tests.aio import asynchronous

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

from penstock.bus import BusConfig, EventBus, TopicOptions
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig
from penstock.bus.contract import SCENARIOS, Scenario, World
from penstock.bus.testing.kafka import KafkaBroker
from penstock.errors import BusError, ConfigError, ConnectFailed, TopicMismatch


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_a_real_broker(scenario: Scenario, kafka: KafkaBroker) -> None:
    settings = KafkaConsumerConfig(discovery_interval=0.3)
    kafka_config = KafkaConfig(brokers=(kafka.address,), consumer=settings)
    asynchronous(scenario)(World(BusConfig(type="kafka", kafka=kafka_config)))
    gc.collect()


@asynchronous
async def test_partitions_replicas_and_compression_are_compared_with_the_broker(
    kafka: KafkaBroker,
) -> None:
    namespace = "compared"
    declared = TopicOptions(partitions=3, compression="lz4", retention=3600.0)
    async with EventBus.open(kafka.url, namespace=namespace) as bus:
        assert "created" == (await bus.configure_topic("t", declared)).action
        state = await bus.engine.inspect("t")
        assert state is not None
        assert (3, 1, "lz4", 3600.0) == (
            state.options.partitions,
            state.options.replicas,
            state.options.compression,
            state.options.retention,
        )
        wanted = TopicOptions(partitions=5, compression="zstd")
        drifts = (await bus.check_topic("t", wanted)).drifts
        assert [("partitions", False), ("compression", True)] == [
            (drift.field, drift.fixable) for drift in drifts
        ]
    async with EventBus.open(
        kafka.url, namespace=namespace, strategy="create_or_update"
    ) as changing:
        assert "updated" == (await changing.configure_topic("t", compression="zstd")).action
        assert (await changing.check_topic("t", TopicOptions(retention=3600.0))).in_sync
        with pytest.raises(TopicMismatch, match="partitions"):
            await changing.configure_topic("t", partitions=5)


@asynchronous
async def test_dead_letters_are_kept_until_somebody_has_looked_at_them(kafka: KafkaBroker) -> None:
    async with EventBus.open(kafka.url, namespace="kept") as bus:
        await bus._publisher.store("dead-letters.t", b"")
        state = await bus.engine.inspect("dead-letters.t")

        assert state is not None
        assert (None, None) == (state.options.retention, state.options.max_bytes)


@asynchronous
async def test_what_kafka_cannot_do_is_refused_with_a_remedy(kafka: KafkaBroker) -> None:
    async with EventBus.open(kafka.url, namespace="refused") as bus:
        for options, remedy in (
            (TopicOptions(max_msgs=5), "`retention`"),
            (TopicOptions(compression="s2"), "lz4"),
            (TopicOptions(persistence="ephemeral"), "`retention`"),
            (TopicOptions(replicas=3), "replication factor"),
        ):
            with pytest.raises(BusError, match=remedy):
                await bus.configure_topic("t", options)
        with pytest.raises(BusError, match="cannot be a topic of Kafka"):
            await bus.publish("a=b", b"")
        with pytest.raises(BusError, match="answers no requests"):
            await bus.request("a", {})


@asynchronous
async def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    base = KafkaConfig(brokers=("127.0.0.1:1",), connection_timeout=0.5)
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
        await EventBus.open(BusConfig(type="kafka", kafka=base, connect_timeout=0.0)).__aenter__()


@asynchronous
async def test_a_cluster_that_is_not_there_is_complained_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    base = KafkaConfig(brokers=("127.0.0.1:1", "127.0.0.1:2"), connection_timeout=3.0)
    with pytest.raises(ConnectFailed):
        await EventBus.open(BusConfig(type="kafka", kafka=base, connect_timeout=0.0)).__aenter__()

    assert len(caplog.records) <= 12


@asynchronous
async def test_a_property_that_librdkafka_does_not_know_is_named(kafka: KafkaBroker) -> None:
    base = KafkaConfig(brokers=(kafka.address,), properties={"no.such.thing": "1"})
    with pytest.raises(ConfigError, match=r"no\.such\.thing"):
        await EventBus.open(BusConfig(type="kafka", kafka=base)).__aenter__()
