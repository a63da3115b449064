"""
Librdkafka's mock cluster: brokers that speak Kafka and do as they are told.

It comes with the wheel of confluent-kafka and is reached through ctypes. It keeps a few
megabytes for each partition, makes every topic it is asked for, and manages none.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 8, 9
"""What requests are called in Kafka's protocol."""

NOT_LEADER, NOT_ENOUGH_REPLICAS, COORDINATOR_LOADING = 6, 19, 14
ILLEGAL_GENERATION, UNKNOWN_TOPIC = 22, 3
NOT_PERMITTED = 30

PRODUCER = 0
ERROR_BYTES = 512


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
    for name in ("rd_kafka_new", "rd_kafka_mock_cluster_new", "rd_kafka_conf_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockCluster:
    """Some brokers in this process. Use with `with`."""

    def __init__(self, brokers: int = 3) -> None:
        self._library = _library()
        self._brokers = brokers

    def __enter__(self) -> MockCluster:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        client = self._library.rd_kafka_new(PRODUCER, None, error, ERROR_BYTES)
        assert client, error.value
        self._client = ctypes.c_void_p(client)
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(self._client, self._brokers)
        )
        self._call("rd_kafka_mock_group_initial_rebalance_delay_ms", 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("rd_kafka_mock_cluster_destroy")
        self._library.rd_kafka_destroy(self._client)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the brokers are."""
        text = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return tuple(text.decode().split(","))

    def create(self, name: str, partitions: int) -> None:
        """Make a topic."""
        assert not self._call(
            "rd_kafka_mock_topic_create", ctypes.c_char_p(name.encode()), partitions, self._brokers
        )

    def hide(self, name: str, *, is_hidden: bool = True) -> None:
        """Say of a topic that there is none, as brokers do that have just started."""
        self._call(
            "rd_kafka_mock_topic_set_error",
            ctypes.c_char_p(name.encode()),
            UNKNOWN_TOPIC if is_hidden else 0,
        )

    def down(self, broker: int) -> None:
        """Have a broker refuse connections, and drop those it has."""
        assert not self._call("rd_kafka_mock_broker_set_down", broker)

    def up(self, broker: int) -> None:
        """Have it back."""
        assert not self._call("rd_kafka_mock_broker_set_up", broker)

    def delay(self, broker: int, milliseconds: int) -> None:
        """Have a broker answer that much later."""
        assert not self._call("rd_kafka_mock_broker_set_rtt", broker, milliseconds)

    def fail(self, request: int, *errors: int) -> None:
        """Have the next requests of a kind answered with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._call(
            "rd_kafka_mock_push_request_errors_array",
            ctypes.c_int16(request),
            ctypes.c_size_t(len(errors)),
            array,
        )

    @property
    def brokers(self) -> range:
        """Their numbers."""
        return range(1, self._brokers + 1)

    def _call(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, name)(self._cluster, *arguments))
