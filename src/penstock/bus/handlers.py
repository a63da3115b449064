"""
Handlers, and the arguments they are called with.

The annotation of the first parameter decides: `Envelope` or nothing is the event,
`Envelope[Order]` the event with a typed payload, `bytes` the message as it is,
`Delivery` the message with its headers, and any other type the payload alone. A
second parameter, if there is one, gets the event. A plain function runs on a thread.

A handler that could never be called like that is refused at registration.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from penstock.bus.engine import Delivery
from penstock.bus.events.codec import Codec
from penstock.bus.events.envelope import Envelope
from penstock.errors import BusError, InvalidEnvelope
from penstock.protocol import subjects

Handler: TypeAlias = Callable[..., Any]
H = TypeVar("H", bound=Callable[..., Any])
"""A handler; the decorator that registers it keeps its type."""
Key: TypeAlias = Callable[[Delivery], str]
Threads: TypeAlias = Callable[[], ThreadPoolExecutor]
"""Returns the pool that plain functions run on; creates it at the first call."""


class Running(Protocol):
    """A listener for when a plain function really begins and ends."""

    def began(self) -> None:
        """Called on the thread before the function. If this raises, the function is skipped."""

    def ended(self) -> None:
        """Called on the thread after the function."""


RUNNING: ContextVar[Running | None] = ContextVar("RUNNING", default=None)
"""The runner of the handler that the current code is part of; None outside of handlers."""


class NoHandler(Exception):
    """The handler of a message is gone; the message is not at fault."""


class Postponed(Exception):
    """A message may not be begun now; it is tried again when it may be."""


class Subscription:
    """One handler and its topics."""

    def __init__(
        self,
        pattern: str,
        handler: Handler,
        *,
        argument: Any = None,
        key: Key | None = None,
        timeout_s: float,
        threads: Threads,
    ) -> None:
        self.pattern = pattern
        self.handler = handler
        self.name = name_of(handler)
        self.timeout_s = timeout_s
        self.stop_live: Callable[[], None] = _nothing
        self.call: Callable[[Any], Awaitable[Any]]
        self._encoded = pattern.encode()
        self._key = key
        self._threads = threads
        check_handler(handler)
        hints, count = _parameters(handler)
        kind = argument if argument is not None else (hints[0] if hints else Envelope)
        self._is_raw = kind in (bytes, Delivery)
        self._payload_only = not self._is_raw and get_origin(kind) is not Envelope
        self._payload_only = self._payload_only and kind not in (Envelope, Any)
        self._wants_both = self._payload_only and count > 1
        self._wants_bytes = kind is bytes
        self.payload_type = _payload_type(kind) if not self._is_raw else Any
        self.is_cancellable = _is_async(handler)
        """Whether it can be stopped: a thread cannot be."""
        self._check_call()
        self.call = self._calling(handler)

    def close(self) -> None:
        """Stop calling the handler; messages that wait for it get `NoHandler`."""
        self.stop_live()
        self.call = _refuse

    def matches(self, topic: str) -> bool:
        """Return whether this handler is for a topic."""
        return subjects.matches(self._encoded, topic.encode())

    def open(self, delivery: Delivery, codec: Codec) -> None:
        """Decode a message once, for its key and for the handler; raise if that fails."""
        delivery.subscription = self
        if self._is_raw:
            delivery.event = delivery.payload if self._wants_bytes else delivery
            delivery.key = self._key(delivery) if self._key is not None else ""
            return
        try:
            envelope = codec.decode(delivery.payload, self.payload_type)
        except InvalidEnvelope:
            # Its payload may not fit this handler, and its aggregate still be known.
            with suppress(InvalidEnvelope):
                delivery.key = self.key_of(delivery, codec)
            raise
        delivery.key = envelope.aggregate_id if self._key is None else self._key(delivery)
        delivery.event = envelope

    def key_of(self, delivery: Delivery, codec: Codec) -> str:
        """Return the ordering key of a message, without decoding it for the handler."""
        if self._key is not None:
            return self._key(delivery)
        return "" if self._is_raw else codec.key(delivery.payload)

    def _calling(self, handler: Handler) -> Callable[[Any], Awaitable[Any]]:
        """Return a function that calls the handler with an event."""
        call = calling(handler, self._threads)
        if not self._payload_only:
            return call
        if self._wants_both:
            return lambda event: call(event.payload, event)
        return lambda event: call(event.payload)

    def _check_call(self) -> None:
        """Raise if the handler cannot take the arguments it would get."""
        why = _refusal(self.handler, 2 if self._wants_both else 1)
        if why:
            raise _uncallable(self.name, why)


def calling(handler: Handler, threads: Threads) -> Callable[..., Awaitable[Any]]:
    """Return an awaitable form of any handler; a plain function runs on a thread."""
    if _is_async(handler):
        return handler

    async def call(*arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        context = copy_context()  # a thread does not see the task's context, such as a trace
        job = _on_thread(handler, arguments)
        result = await loop.run_in_executor(threads(), context.run, job)
        if inspect.isawaitable(result):
            return await result  # such as from a lambda around a coroutine function
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            name = name_of(handler)
            raise BusError(f"the handler `{name}` returns a generator, which nobody runs")
        return result

    return call


def check_handler(handler: Handler) -> None:
    """Raise if an object can never be a handler."""
    name = name_of(handler)
    if inspect.isclass(handler):
        raise BusError(f"`{name}` is a class; hint: an instance with `async def __call__`")
    if not callable(handler):
        raise BusError(f"`{name}` is no handler: it cannot be called")
    if _is(handler, inspect.isasyncgenfunction) or _is(handler, inspect.isgeneratorfunction):
        raise BusError(f"the handler `{name}` has a `yield`, so a call of it does nothing")
    # The types in its annotations may not exist yet; its number of parameters is known.
    if _refusal(handler, 1) and (why := _refusal(handler, 2)):
        raise _uncallable(name, why)


def check_callback(callback: Any) -> None:
    """Raise if an object cannot be called back: that is done at once, and awaits nothing."""
    name = name_of(callback)
    if not callable(callback):
        raise BusError(f"`{name}` is no callback: it cannot be called")
    if _is_async(callback):
        raise BusError(
            f"`{name}` is `async def`, and a callback is called without `await`; hint: "
            "a plain function that starts a task"
        )


def name_of(handler: Any) -> str:
    """Return the name of a handler for logs and errors."""
    return getattr(handler, "__qualname__", None) or repr(handler)


def _is(handler: Handler, kind: Callable[[Any], bool]) -> bool:
    """Return whether a function, or an object's `__call__`, is of a kind."""
    return kind(handler) or kind(getattr(handler, "__call__", None))  # noqa: B004


def _is_async(handler: Handler) -> bool:
    return _is(handler, inspect.iscoroutinefunction)


def _on_thread(handler: Handler, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Return the job of a thread: call a plain function, and report its begin and end."""

    def call() -> Any:
        running = RUNNING.get()
        if running is not None:
            running.began()
        try:
            return handler(*arguments)
        except StopIteration as error:
            # A future refuses a StopIteration.
            raise RuntimeError("the handler raised StopIteration") from error
        finally:
            if running is not None:
                running.ended()

    return call


def _signature(handler: Handler) -> inspect.Signature | None:
    """Return the signature of a handler; None if it is written in C and has none."""
    try:
        return inspect.signature(handler)
    except (TypeError, ValueError):
        return None


def _refusal(handler: Handler, arguments: int) -> str:
    """Return why a handler cannot be called with this number of arguments; empty if it can."""
    signature = _signature(handler)
    try:
        if signature is not None:
            signature.bind(*range(arguments))
    except TypeError as error:
        return str(error)
    return ""


def _uncallable(name: str, why: str) -> BusError:
    return BusError(
        f"the handler `{name}` cannot be called: {why}; hint: `(event)`, or "
        "`(payload, event)` with a type for the payload"
    )


def _parameters(handler: Handler) -> tuple[list[Any], int]:
    """Return the annotations of the positional parameters, and how many there are."""
    signature = _signature(handler)
    parameters = [
        parameter
        for parameter in (signature.parameters.values() if signature is not None else ())
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    function = handler if hasattr(handler, "__annotations__") else type(handler).__call__
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # An annotation with a name that cannot be resolved here counts as missing.
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
