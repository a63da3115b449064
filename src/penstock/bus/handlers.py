"""
Handlers, and what they want to be called with.

The annotation of the first parameter says it: `Envelope` or nothing is the event,
`Envelope[Order]` the event with a typed payload, `bytes` the message as it is,
`Delivery` the message with its headers, and any other type the payload alone. A
second parameter, if there is one, gets the event. A plain function runs on a thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from penstock import subjects
from penstock.bus.codec import Codec
from penstock.bus.engine import Delivery
from penstock.bus.envelope import Envelope

Handler: TypeAlias = Callable[..., Any]
Key: TypeAlias = Callable[[Delivery], str]


class NoHandler(Exception):
    """The handler of a message is gone; the message is not at fault."""


class Subscription:
    """One handler, and the topics it is for."""

    def __init__(
        self,
        pattern: str,
        handler: Handler,
        *,
        argument: Any = None,
        key: Key | None = None,
        timeout_s: float,
        threads: Callable[[], ThreadPoolExecutor],
    ) -> None:
        self.pattern = pattern
        self.handler = handler
        self.timeout_s = timeout_s
        self.stop_live: Callable[[], None] = _nothing
        self.call: Callable[[Any], Awaitable[Any]]
        self._encoded = pattern.encode()
        self._key = key
        self._threads = threads
        hints, count = _parameters(handler)
        kind = argument if argument is not None else (hints[0] if hints else Envelope)
        self._is_raw = kind in (bytes, Delivery)
        self._payload_only = not self._is_raw and get_origin(kind) is not Envelope
        self._payload_only = self._payload_only and kind not in (Envelope, Any)
        self._wants_both = self._payload_only and count > 1
        self._wants_bytes = kind is bytes
        self.payload_type = _payload_type(kind) if not self._is_raw else Any
        self.call = self._calling(handler)

    def close(self) -> None:
        """Have the handler called no more; messages that wait for it get `NoHandler`."""
        self.stop_live()
        self.call = _refuse

    def matches(self, topic: str) -> bool:
        """Tell whether a topic is this handler's."""
        return subjects.matches(self._encoded, topic.encode())

    def open(self, delivery: Delivery, codec: Codec) -> None:
        """Decode a message once, for its key and for the handler; raise if it cannot be."""
        delivery.subscription = self
        if self._is_raw:
            delivery.event = delivery.payload if self._wants_bytes else delivery
            delivery.key = self._key(delivery) if self._key is not None else ""
            return
        envelope = codec.decode(delivery.payload, self.payload_type)
        delivery.key = envelope.aggregate_id if self._key is None else self._key(delivery)
        delivery.event = envelope

    def _calling(self, handler: Handler) -> Callable[[Any], Awaitable[Any]]:
        """Return how the handler is called with an event."""
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004
        )
        if is_async and not self._payload_only:
            return handler
        if is_async and self._wants_both:
            return lambda event: handler(event.payload, event)
        if is_async:
            return lambda event: handler(event.payload)
        return self._call_on_thread

    async def _call_on_thread(self, event: Any) -> Any:
        arguments: tuple[Any, ...] = (event,)
        if self._payload_only:
            arguments = (event.payload, event) if self._wants_both else (event.payload,)
        loop = asyncio.get_running_loop()
        context = copy_context()  # a thread does not see the task's, as of a trace
        return await loop.run_in_executor(self._threads(), context.run, self.handler, *arguments)


def _parameters(handler: Handler) -> tuple[list[Any], int]:
    """Return the annotations of the positional parameters, and how many there are."""
    parameters = [
        parameter
        for parameter in inspect.signature(handler).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    function = handler if hasattr(handler, "__annotations__") else type(handler).__call__
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # An annotation that names what cannot be seen from here says nothing.
        hints = {}
    return [hints.get(parameter.name, Envelope) for parameter in parameters], len(parameters)


def _payload_type(kind: Any) -> Any:
    if kind is Envelope or kind is Any:
        return Any
    if get_origin(kind) is Envelope:
        kind = get_args(kind)[0]
    return Any if kind is object else kind


def _nothing() -> None:
    """Stand in for a subscription without a live part."""


async def _refuse(event: Any) -> None:
    raise NoHandler
