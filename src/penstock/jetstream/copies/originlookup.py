"""How a stream finds its origins: in its account, or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.jetstream.copies.remote import AccountRemote, Remote
from penstock.protocol import subjects, wellknown

if TYPE_CHECKING:
    from penstock.jetstream.context import Context
    from penstock.jetstream.copies.streams import Copied


class OriginLookup:
    """The streams of one account, and the remote servers and accounts it can ask."""

    def __init__(
        self, context: Context, streams: Mapping[str, Copied], remotes: Mapping[str, Remote]
    ) -> None:
        """`remotes` are other servers, by the API prefix of each."""
        self._context = context
        self._streams = streams
        self._remotes = remotes

    def find(self, name: str) -> Copied | None:
        """Return a stream of the account."""
        return self._streams.get(name)

    def remote_of(self, origin: Mapping[str, Any]) -> Remote | None:
        """Return the remote of an origin; None for a stream of this account."""
        external = origin.get("external")
        if external is not None:
            api = external.get("api", "")
            return self._remotes.get(api) or AccountRemote(self._context, api)
        return AccountRemote(self._context, wellknown.API) if origin.get("consumer") else None

    def includes(self, api: str) -> bool:
        """Tell whether this API prefix leads anywhere."""
        imports = self._context.account.config.imports
        services = [each for each in imports if each.kind == "service"]
        pattern = f"{api}.>".encode()
        imported = any(subjects.overlap(each.local.encode(), pattern) for each in services)
        return api in self._remotes or (bool(api) and imported)
