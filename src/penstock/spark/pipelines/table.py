"""The pipelines there are: what each is for, and the module that is it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from penstock.errors import ConfigError
from penstock.protocol.suggestions import nearest


class Pipeline(NamedTuple):
    """
    A module with `SETTINGS`, and `start` if it streams or `run` if it ends by itself; `batches`
    if it does so step by step.
    """

    module: str
    summary: str


PIPELINES = {
    "archive": Pipeline("archive", "Topics into a Parquet lake by topic and date, exactly once."),
    "replay": Pipeline("replay", "From the lake back to the bus, in order per aggregate."),
    "audit": Pipeline("audit", "Gaps, duplicates and reordering between stream and lake."),
    "metrics": Pipeline("metrics", "Counts, rates, sizes and latencies by topic and window."),
    "state": Pipeline("state", "Fold events into the state of each aggregate, with your function."),
    "bench-history": Pipeline("benchhistory", "Results of `penstock bench` as trends and plots."),
}


def find(name: str) -> Any:
    """Import the module of a pipeline."""
    if name not in PIPELINES:
        meant = nearest(name, PIPELINES)
        hint = f"did you mean `{meant}`? " if meant else ""
        valid = ", ".join(f"`{each}`" for each in PIPELINES)
        raise ConfigError(f"there is no pipeline `{name}`; {hint}valid: {valid}")
    return import_module(f"penstock.spark.pipelines.{PIPELINES[name].module}")


def settings_of(name: str) -> Mapping[str, str]:
    """Return the settings of a pipeline and what they mean."""
    settings: Mapping[str, str] = find(name).SETTINGS
    return settings
