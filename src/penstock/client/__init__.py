"""Our own NATS client for asyncio. It batches writes by itself, and has JetStream."""

from penstock.client.client import Client, connect
from penstock.client.jetstream.consume import Consume, ConsumeOptions
from penstock.client.jetstream.jetstream import Expect, JetStream, JetStreamOptions, Outgoing
from penstock.client.jetstream.ordered import OrderedConsumer
from penstock.client.jetstream.puback import PubAck
from penstock.client.jetstream.pull import PullConsumer
from penstock.client.jetstream.push import PushConsumer
from penstock.client.jetstream.streams import StoredMessage
from penstock.client.messages import Message, Metadata
from penstock.client.options import ClientOptions
from penstock.client.subscription import Subscription

__all__ = [
    "Client",
    "ClientOptions",
    "Consume",
    "ConsumeOptions",
    "Expect",
    "JetStream",
    "JetStreamOptions",
    "Message",
    "Metadata",
    "OrderedConsumer",
    "Outgoing",
    "PubAck",
    "PullConsumer",
    "PushConsumer",
    "StoredMessage",
    "Subscription",
    "connect",
]
