"""The event bus, held to its contract on librdkafka's mock cluster of Kafka brokers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.aio import asynchronous

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

from tests.contract.kafkamock import MockCluster

from penstock.bus import BusConfig
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig
from penstock.bus.contract import SCENARIOS, Scenario, World

# Closing a consumer of the mock was seen to wait inside librdkafka, where no signal ends a test.
pytestmark = pytest.mark.timeout(120, method="thread")

NOT_ON_THE_MOCK = {
    # It answers no CreateTopics and no DescribeConfigs,
    "configuring_a_topic_twice_changes_nothing",
    "create_only_never_changes_a_topic",
    "create_or_update_makes_a_topic_as_declared",
    "validate_only_compares_with_the_broker_and_changes_nothing",
    # and does not look for offsets by time.
    "a_topic_can_be_read_again_by_sequence_time_and_key",
    # It refuses commits while a group rebalances.
    "of_two_processes_of_an_exclusive_service_one_reads_until_it_stops",
    # Of several members the mock left one without partitions for a minute; Kafka does not.
    "members_share_the_keys_and_each_key_keeps_its_order",
    "a_member_that_joins_takes_its_part_and_the_order_is_kept",
    "whichever_member_stops_the_others_go_on_and_repeat_nothing",
    "a_release_that_rolls_over_all_members_repeats_nothing",
    "a_key_that_fails_keeps_no_other_from_being_shared",
    "a_member_that_is_restarted_under_its_name_repeats_nothing",
}
ON_THE_MOCK = [one for one in SCENARIOS if one.__name__ not in NOT_ON_THE_MOCK]


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("scenario", ON_THE_MOCK, ids=lambda scenario: scenario.__name__)
def test_on_the_mock_cluster(scenario: Scenario, mock: MockCluster) -> None:
    # The mock lets a group wait for a session, less a second, before it rebalances.
    settings = KafkaConsumerConfig(discovery_interval=0.3, session_timeout=1.3)
    kafka = KafkaConfig(brokers=mock.addresses, consumer=settings)
    asynchronous(scenario)(World(BusConfig(type="kafka", strategy="skip", kafka=kafka)))
    gc.collect()
