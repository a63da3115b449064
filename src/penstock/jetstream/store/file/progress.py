"""How far a store on disk has come."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.jetstream.store.catalog import Catalog


@dataclass(slots=True)
class FileProgress:
    """The appended records, and which of them are synced. A `Progress`."""

    catalog: Catalog
    failure: str | None = None
    position: int = 0
    durable_position: int = 0
    durable_sequence: int = 0
    is_syncing: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether everything appended and removed would survive a power cut."""
        return self.position == self.durable_position and not self.catalog.has_removals
