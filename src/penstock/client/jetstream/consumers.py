"""Managing consumers."""

from __future__ import annotations

from typing import Any, Unpack

from penstock.client.jetstream.api import Api, check_name
from penstock.client.jetstream.settings import ConsumerSettings


class Consumers:
    """The `CONSUMER.*` API. Settings have the names of the NATS documentation."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, stream: str, **config: Unpack[ConsumerSettings]) -> dict[str, Any]:
        """Create a consumer. Repeating it with the same configuration is not an error."""
        return await self._create(stream, "create", config)

    async def update(self, stream: str, **config: Unpack[ConsumerSettings]) -> dict[str, Any]:
        """Update an existing consumer."""
        return await self._create(stream, "update", config)

    async def create_or_update(
        self, stream: str, **config: Unpack[ConsumerSettings]
    ) -> dict[str, Any]:
        """Create the consumer, or update it to match `config`."""
        return await self._create(stream, "", config)

    async def info(self, stream: str, consumer: str) -> dict[str, Any]:
        """Return configuration and state."""
        return await self._call("INFO", stream, consumer)

    async def delete(self, stream: str, consumer: str) -> None:
        """Delete a consumer."""
        await self._call("DELETE", stream, consumer)

    async def pause(self, stream: str, consumer: str, **request: Any) -> dict[str, Any]:
        """Pause deliveries until `pause_until`; without it, resume."""
        return await self._call("PAUSE", stream, consumer, request)

    async def unpin(self, stream: str, consumer: str, *, group: str) -> None:
        """Unpin the pinned client of a priority group, so that another one gets its turn."""
        await self._call("UNPIN", stream, consumer, {"group": group})

    async def names(self, stream: str) -> list[str]:
        """Return the names of all consumers of a stream."""
        operation = f"CONSUMER.NAMES.{check_name(stream, 'stream')}"
        return [name async for name in self._api.pages(operation, "consumers")]

    async def list(self, stream: str) -> list[dict[str, Any]]:
        """Return the info of all consumers of a stream."""
        operation = f"CONSUMER.LIST.{check_name(stream, 'stream')}"
        return [info async for info in self._api.pages(operation, "consumers")]

    async def _create(self, stream: str, action: str, config: ConsumerSettings) -> dict[str, Any]:
        name = config.get("durable_name") or config.get("name")
        operation = f"CONSUMER.CREATE.{check_name(stream, 'stream')}"
        if name:
            operation += f".{check_name(name, 'consumer')}"
            # With the filter in the subject, a server's permissions can allow or deny it.
            if config.get("filter_subject"):
                operation += f".{config['filter_subject']}"
        request = {"stream_name": stream, "config": config, "action": action}
        return await self._api.call(operation, request)

    async def _call(
        self, operation: str, stream: str, consumer: str, request: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        names = f"{check_name(stream, 'stream')}.{check_name(consumer, 'consumer')}"
        return await self._api.call(f"CONSUMER.{operation}.{names}", request)
