"""
The YAML of a pipeline.

    pipeline: archive            # one of `penstock pipeline list`, or yours: `module:function`
    source:                      # options of the source, as `spark.readStream` takes them
      servers: nats://127.0.0.1:4222
      stream: ORDERS
    target: /lake/orders         # where the result goes
    checkpoint: /lake/_checkpoints/orders
    trigger: 10 seconds
    settings: {}                 # what only this pipeline knows
    spark: {spark.driver.memory: 2g}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.protocol.suggestions import nearest
from penstock.spark.envelopes.envelope import DECOMPRESSED
from penstock.spark.source.position import parse_position
from penstock.spark.source.schema import COLUMNS

IDENTITY = ("user", "password", "token", "nkeyseedsecret")


DURATION = re.compile(
    r"(\d+\s+(microsecond|millisecond|second|minute|hour|day|week)s?\b\s*)+", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """One file, read and checked."""

    pipeline: str
    name: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    checkpoint: str = ""
    trigger: str = "10 seconds"
    settings: Mapping[str, Any] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)

    def need(self, *names: str) -> None:
        """Raise unless all of these are given."""
        for name in names:
            if not getattr(self, name):
                raise ConfigError(f"the pipeline `{self.pipeline}` needs `{name}`")

    def setting(self, name: str, default: Any = None) -> Any:
        """Return one of the pipeline's own settings."""
        return self.settings.get(name, default)

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """Return one of the settings that are whole numbers."""
        given = self.settings.get(name)
        try:
            if isinstance(given, bool):
                raise TypeError
            found = default if given is None else int(given)
        except (TypeError, ValueError):
            raise ConfigError(f"`{name}` must be a whole number: `{given}`") from None
        if found < least:
            raise ConfigError(f"`{name}` must be at least {least}: {found}")
        return found

    def time(self, name: str) -> datetime | None:
        """Return one of the settings that are times; one without a zone is UTC."""
        given = self.settings.get(name)
        if given is None:
            return None
        try:
            # YAML reads some times as times, and some as dates.
            found = parse_position(given.isoformat() if isinstance(given, date) else str(given))
            if found.time is None:
                raise ValueError
        except (ValueError, OverflowError, OSError):
            raise ConfigError(
                f"`{name}` must be a time such as `2026-11-15T08:00Z`, or milliseconds since "
                f"1970: `{given}`"
            ) from None
        return found.time

    def duration(self, name: str, default: str, *, may_be_none: bool = False) -> str:
        """Return one of the settings that are durations in Spark's words."""
        return checked_duration(name, self.settings.get(name, default), may_be_none=may_be_none)


def checked_duration(name: str, given: Any, *, may_be_none: bool = False) -> str:
    """Return a duration; raise for what Spark takes for none, and for no time unless it may be."""
    text = str(given).strip()
    if not DURATION.fullmatch(text):
        raise ConfigError(f"`{name}` must be a duration such as `10 seconds`: `{given}`")
    if not may_be_none and not re.search("[1-9]", text):
        raise ConfigError(f"`{name}` must be longer than nothing: `{given}`")
    return text


def load(path: Path, pipeline: str | None = None) -> PipelineConfig:
    """Read a YAML file; the pipeline may be named elsewhere, which goes before what it says."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("PyYAML is missing; hint: pip install 'penstock[spark]'") from None
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a mapping that starts with `pipeline:`")
    return parse(values | ({"pipeline": pipeline} if pipeline else {}))


def parse(values: Mapping[str, Any]) -> PipelineConfig:
    """Check what a file says."""
    known = [item.name for item in fields(PipelineConfig)]
    for name in values:
        if name not in known:
            meant = nearest(name, known)
            hint = f"did you mean `{meant}`? " if meant else ""
            valid = ", ".join(f"`{each}`" for each in known)
            raise ConfigError(f"`{name}` is no setting of a pipeline; {hint}valid: {valid}")
    if "pipeline" not in values:
        raise ConfigError("`pipeline` is missing; hint: penstock pipeline list")
    for name in ("source", "settings", "spark"):
        if not isinstance(values.get(name, {}), Mapping):
            raise ConfigError(f"`{name}` must be a mapping")
    given = {
        name: {str(key): _option(str(key), value) for key, value in values[name].items()}
        for name in ("source", "spark")
        if name in values
    }
    if "trigger" in values:
        checked_duration("trigger", values["trigger"], may_be_none=True)
    return PipelineConfig(**{**values, **given})


def with_decompressed(source: Mapping[str, str]) -> Mapping[str, str]:
    """Have the source decompress events, beside `data`: what `open_events` makes use of."""
    if {name.lower() for name in source} & {"columns", "format"}:
        return source
    return {**source, "columns": ", ".join((*COLUMNS, DECOMPRESSED))}


def _option(name: str, value: Any) -> str:
    if name.lower() in IDENTITY and value is not None and not isinstance(value, str):
        raise ConfigError(
            f"`{name}` is no text for YAML, which reads it as another value; hint: quote it"
        )
    return _text(value)


def _text(value: Any) -> str:
    """Return what YAML has read as Spark takes it: all options are text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps({str(key): _text(each) for key, each in value.items()})
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else str(value)


def check_settings(config: PipelineConfig, known: Mapping[str, str]) -> None:
    """Raise for a setting that the pipeline does not know."""
    for name in config.settings:
        if name not in known:
            valid = ", ".join(f"`{each}`" for each in known) or "none"
            raise ConfigError(f"`{config.pipeline}` has no setting `{name}`; valid: {valid}")
