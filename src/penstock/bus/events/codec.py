"""
Envelopes to bytes and back, with payloads of the type a handler asks for.

msgspec reads dataclasses, its own Structs, TypedDicts and all built-in types; a
pydantic model is recognised by its methods, so pydantic is never imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import msgspec.inspect

from penstock.bus.events.envelope import Envelope
from penstock.errors import BusError, InvalidEnvelope
from penstock.protocol.compression import Compressor, decompress, is_compressed

OPENING = b"{"
UNREADABLE = (msgspec.MsgspecError, InvalidEnvelope, UnicodeDecodeError, RecursionError)
"""The errors of reading an envelope; one from a stranger may be nested without end."""

Upcaster: TypeAlias = Callable[[Any], Any]
"""Takes the payload of one version and returns that of the next."""


class Keyed(msgspec.Struct):
    """The fields of an envelope that give its ordering key."""

    aggregate_id: str


class Codec:
    """Encodes and decodes envelopes; knows how to bring old payloads up to date."""

    def __init__(self, compressor: Compressor | None = None) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=encode_foreign).encode
        self._compressor = compressor
        self._upcasters: dict[tuple[str, int], Upcaster] = {}
        self._decoders: dict[Any, msgspec.json.Decoder[Envelope[Any]]] = {}
        self._key_decoder = msgspec.json.Decoder(Keyed)

    def encode(self, envelope: Envelope[Any]) -> bytes:
        """Return the envelope as JSON, compressed if it is large and compression is on."""
        if not isinstance(envelope, Envelope):
            raise InvalidEnvelope(f"a {type(envelope).__name__} is no event; hint: `Envelope(…)`")
        try:
            data = self._encode(envelope)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise InvalidEnvelope(f"{envelope.event_type!r} cannot be encoded: {error}") from error
        return self._compressor(data) if self._compressor is not None else data

    def decode(self, data: bytes, payload_type: Any = Any) -> Envelope[Any]:
        """Read an envelope whose payload becomes a `payload_type`."""
        if data[:1] != OPENING and is_compressed(data):
            data = decompress(data)
        try:
            if self._upcasters:
                return self._decode_any_version(data, payload_type)
            decoder = self._decoders.get(payload_type) or self._decoder(payload_type)
            return decoder.decode(data)
        except UNREADABLE as error:
            raise InvalidEnvelope(f"not an envelope: {error}") from error

    def key(self, data: bytes) -> str:
        """Return the aggregate of an envelope, and read nothing else of it."""
        if data[:1] != OPENING and is_compressed(data):
            data = decompress(data)
        try:
            return self._key_decoder.decode(data).aggregate_id
        except UNREADABLE as error:
            raise InvalidEnvelope(f"not an envelope: {error}") from error

    def check(self, payload_type: Any) -> None:
        """Raise if payloads cannot become a `payload_type`: before the first one comes."""
        try:
            self._decoder(payload_type)
            info = msgspec.inspect.type_info(payload_type)
        except TypeError as error:
            raise BusError(
                f"payloads cannot become {payload_type!r}: {error}; hint: of several types each is "
                "a `msgspec.Struct` with a `tag`, or a handler takes the `Envelope` and decides"
            ) from error
        foreign = isinstance(info, msgspec.inspect.CustomType)
        if foreign and not hasattr(payload_type, "model_validate"):
            raise BusError(
                f"payloads cannot become {payload_type!r}; hint: a dataclass, a msgspec.Struct, "
                "a pydantic model or a built-in type"
            )

    def upcaster(self, event_type: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Register a function that turns a payload of `from_version` into one of the next."""

        def register(upcast: Upcaster) -> Upcaster:
            if (event_type, from_version) in self._upcasters:
                raise InvalidEnvelope(
                    f"`{event_type}` version {from_version} has an upcaster already"
                )
            self._upcasters[event_type, from_version] = upcast
            return upcast

        return register

    def _decode_any_version(self, data: bytes, payload_type: Any) -> Envelope[Any]:
        envelope = self._decoder(Any).decode(data)
        payload, version = envelope.payload, envelope.event_version
        while (upcast := self._upcasters.get((envelope.event_type, version))) is not None:
            payload, version = _upcast(envelope, upcast, payload), version + 1
        if payload_type is not Any:
            payload = msgspec.convert(payload, payload_type, dec_hook=_decode_foreign)
        return envelope.with_payload(payload, event_version=version)

    def _decoder(self, payload_type: Any) -> msgspec.json.Decoder[Envelope[Any]]:
        decoder = self._decoders.get(payload_type)
        if decoder is None:
            decoder = msgspec.json.Decoder(Envelope[payload_type], dec_hook=_decode_foreign)
            self._decoders[payload_type] = decoder
        return decoder


def _upcast(envelope: Envelope[Any], upcast: Upcaster, payload: Any) -> Any:
    """Bring a payload up to date; raise if it does not match its version."""
    try:
        return upcast(payload)
    except Exception as error:
        raise InvalidEnvelope(
            f"the upcaster of `{envelope.event_type}` failed: {type(error).__name__}: {error}"
        ) from error


def encode_foreign(value: Any) -> Any:
    """Turn a pydantic model into JSON types."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _decode_foreign(payload_type: Any, value: Any) -> Any:
    """Make a pydantic model from decoded JSON."""
    if hasattr(payload_type, "model_validate"):
        return payload_type.model_validate(value)
    raise TypeError(f"nothing is known of {payload_type!r}")
