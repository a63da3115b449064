"""The event bus: publish and handle events in order by aggregate, on NATS or in process."""

from penstock.errors import MissingExtra

try:
    import msgspec as _  # noqa: F401  (every module below stands on it)
except ImportError:
    raise MissingExtra("the event bus needs msgspec; hint: pip install 'penstock[bus]'") from None

from penstock.bus.bus import EventBus, Health
from penstock.bus.config.bus import (
    BacklogConfig,
    BusConfig,
    EmbeddedConfig,
    HealthConfig,
    PublisherConfig,
    SubscriberConfig,
    TopicOptions,
)
from penstock.bus.config.kafka import (
    KafkaConfig,
    KafkaConsumerConfig,
    KafkaProducerConfig,
    KafkaTopicConfig,
)
from penstock.bus.config.loading import load_config
from penstock.bus.config.nats import ConsumerConfig, JetStreamConfig, NatsConfig, StreamConfig
from penstock.bus.deadletters.stored import DeadLetterBox, Selection
from penstock.bus.engine import Delivery, Engine, Features, Receipt
from penstock.bus.events.cloudevents import from_cloudevent, to_cloudevent
from penstock.bus.events.envelope import Envelope
from penstock.bus.operate.backlog import Backlog
from penstock.bus.operate.health import Heartbeat
from penstock.bus.results import PublishResult, ResultStream
from penstock.bus.topics.topics import Drift, TopicReport

__all__ = [
    "Backlog",
    "BacklogConfig",
    "BusConfig",
    "ConsumerConfig",
    "DeadLetterBox",
    "Delivery",
    "Drift",
    "EmbeddedConfig",
    "Engine",
    "Envelope",
    "EventBus",
    "Features",
    "Health",
    "HealthConfig",
    "Heartbeat",
    "JetStreamConfig",
    "KafkaConfig",
    "KafkaConsumerConfig",
    "KafkaProducerConfig",
    "KafkaTopicConfig",
    "NatsConfig",
    "PublishResult",
    "PublisherConfig",
    "Receipt",
    "ResultStream",
    "Selection",
    "StreamConfig",
    "SubscriberConfig",
    "TopicOptions",
    "TopicReport",
    "from_cloudevent",
    "load_config",
    "to_cloudevent",
]
