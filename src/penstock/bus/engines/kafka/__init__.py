"""The bus on Kafka."""

from penstock.bus.engines.kafka.engine import KafkaEngine

__all__ = ["KafkaEngine"]
