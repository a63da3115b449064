"""One metric of `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Labels = Mapping[str, str]


class Metric(NamedTuple):
    """One metric: its samples have the same name and differ in their labels."""

    name: str
    help: str
    samples: Sequence[tuple[Labels, float]]

    @property
    def type(self) -> str:
        """The Prometheus type. By convention, the name of a counter ends in `_total`."""
        return "counter" if self.name.endswith("_total") else "gauge"
