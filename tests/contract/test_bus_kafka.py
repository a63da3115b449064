"""The event bus, held to its contract on Kafka: a real broker, and librdkafka's mock cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.aio import asynchronous

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

from tests.contract.kafkamock import MockCluster

from penstock.bus import BusConfig, EventBus, TopicOptions
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig
from penstock.bus.contract import SCENARIOS, Scenario, World
from penstock.bus.testing.kafka import KafkaBroker
from penstock.errors import BusError, ConfigError, ConnectFailed, TopicMismatch

NOT_ON_THE_MOCK = {
    # It answers no CreateTopics and no DescribeConfigs,
    "configuring_a_topic_twice_changes_nothing",
    "create_only_never_changes_a_topic",
    "create_or_update_makes_a_topic_as_declared",
    "validate_only_compares_with_the_broker_and_changes_nothing",
    # and does not look for offsets by time.
    "a_topic_can_be_read_again_by_sequence_time_and_key",
    # It refuses commits while a group rebalances.
    "of_two_processes_of_a_service_one_reads_until_it_stops",
}
ON_THE_MOCK = [one for one in SCENARIOS if one.__name__ not in NOT_ON_THE_MOCK]


def config(*brokers: str, **consumer: float) -> BusConfig:
    settings = KafkaConsumerConfig(discovery_interval_s=0.3, **consumer)  # type: ignore[arg-type]
    return BusConfig(type="kafka", kafka=KafkaConfig(brokers=brokers, consumer=settings))


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_a_real_broker(scenario: Scenario, kafka: KafkaBroker) -> None:
    run(scenario, config(kafka.address))


@pytest.mark.parametrize("scenario", ON_THE_MOCK, ids=lambda scenario: scenario.__name__)
def test_on_the_mock_cluster(scenario: Scenario, mock: MockCluster) -> None:
    # The mock lets a group wait for a session, less a second, before it rebalances.
    base = config(*mock.addresses, session_timeout_s=1.3)
    run(scenario, BusConfig(type="kafka", strategy="skip", kafka=base.kafka))


def run(scenario: Scenario, base: BusConfig) -> None:
    asynchronous(scenario)(World(base))
    gc.collect()


@asynchronous
async def test_partitions_replicas_and_compression_are_compared_with_the_broker(
    kafka: KafkaBroker,
) -> None:
    namespace = "compared"
    declared = TopicOptions(partitions=3, compression="lz4", retention_s=3600.0)
    async with EventBus.open(kafka.url, namespace=namespace) as bus:
        assert "created" == (await bus.configure_topic("t", declared)).action
        state = await bus.engine.inspect("t")
        assert state is not None
        assert (3, 1, "lz4", 3600.0) == (
            state.options.partitions,
            state.options.replicas,
            state.options.compression,
            state.options.retention_s,
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
        assert (await changing.check_topic("t", TopicOptions(retention_s=3600.0))).in_sync
        with pytest.raises(TopicMismatch, match="partitions"):
            await changing.configure_topic("t", partitions=5)


@asynchronous
async def test_dead_letters_are_kept_until_somebody_has_looked_at_them(kafka: KafkaBroker) -> None:
    async with EventBus.open(kafka.url, namespace="kept") as bus:
        await bus.publish("dead-letters.t", b"")
        state = await bus.engine.inspect("dead-letters.t")

        assert state is not None
        assert (None, None) == (state.options.retention_s, state.options.bytes_max)


@asynchronous
async def test_what_kafka_cannot_do_is_refused_with_a_remedy(kafka: KafkaBroker) -> None:
    async with EventBus.open(kafka.url, namespace="refused") as bus:
        for options, remedy in (
            (TopicOptions(messages_max=5), "`retention`"),
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
    base = KafkaConfig(brokers=("127.0.0.1:1",), connect_timeout_s=0.5)
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
        await EventBus.open(BusConfig(type="kafka", kafka=base, connect_timeout_s=0.0)).__aenter__()


@asynchronous
async def test_a_cluster_that_is_not_there_is_complained_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    base = KafkaConfig(brokers=("127.0.0.1:1", "127.0.0.1:2"), connect_timeout_s=3.0)
    with pytest.raises(ConnectFailed):
        await EventBus.open(BusConfig(type="kafka", kafka=base, connect_timeout_s=0.0)).__aenter__()

    assert len(caplog.records) <= 12


@asynchronous
async def test_a_property_that_librdkafka_does_not_know_is_named(kafka: KafkaBroker) -> None:
    base = KafkaConfig(brokers=(kafka.address,), properties={"no.such.thing": "1"})
    with pytest.raises(ConfigError, match=r"no\.such\.thing"):
        await EventBus.open(BusConfig(type="kafka", kafka=base)).__aenter__()
