"""Our own NATS client: asyncio, batching by itself, with JetStream."""

from penstock.client.client import Client, connect
from penstock.client.consume import Consume, ConsumeOptions
from penstock.client.jetstream import Expect, JetStream, JetStreamOptions, Outgoing
from penstock.client.messages import Message, Metadata
from penstock.client.options import ClientOptions
from penstock.client.ordered import OrderedConsumer
from penstock.client.pull import PullConsumer
from penstock.client.push import PushConsumer
from penstock.client.streams import StoredMessage
from penstock.client.subscription import Subscription
from penstock.client.window import PubAck

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
