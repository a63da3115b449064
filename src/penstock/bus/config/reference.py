"""The page of the reference that lists every setting of the bus, written from the settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from penstock.bus.config.bus import PRESETS, BusConfig, TopicOptions
from penstock.bus.config.loading import ENVIRONMENT_PREFIX
from penstock.config.setting import key_of

INTRODUCTION = """\
# Settings of the event bus

Written from the code: `python -m penstock.bus.config.reference > docs/reference/eventbus.md`.

A YAML file has these keys under `eventbus:`, in camelCase too if you prefer. An
environment variable is the path in capitals: `nats.jetstream.consumer.ack_wait` is
`{prefix}NATS_JETSTREAM_CONSUMER_ACK_WAIT`. Durations are seconds or `30s`, `100ms`,
`7d`; numbers may be `10k`, which is 10,000, and sizes `64MB`. What comes later wins:
preset, file, environment, code. A key that does not exist is an error.
"""


def settings_page() -> str:
    """Return the page."""
    parts = [INTRODUCTION.format(prefix=ENVIRONMENT_PREFIX)]
    for path, kind in _sections(BusConfig, ""):
        parts.append(f"## {f'`{path}`' if path else 'The bus'}\n\n{kind.__doc__}\n\n{_table(kind)}")
    parts.append(f"## `topics.<topic>`\n\n{TopicOptions.__doc__}\n\n{_table(TopicOptions)}")
    parts.append("## Presets\n\n" + _presets())
    return "\n".join(parts)


def _sections(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, kind
    hints = get_type_hints(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from _sections(hints[item.name], f"{path}.{key_of(item)}".lstrip("."))


def _table(kind: Any) -> str:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    hints = get_type_hints(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]) or "doc" not in item.metadata:
            continue
        default = "" if item.default is MISSING or item.default is None else item.default
        if isinstance(default, tuple):
            default = ", ".join(default)
        shown = f"`{default}`" if default != "" else ""
        lines.append(f"| `{key_of(item)}` | {shown} | {item.metadata['doc']} |")
    return "\n".join(lines) + "\n"


def _presets() -> str:
    lines = ["| preset | changes |", "|---|---|"]
    for name, tree in PRESETS.items():
        changes = ", ".join(f"`{path}` = {value}" for path, value in _leaves(tree, ""))
        lines.append(f"| `{name}` | {changes or 'nothing: these are the defaults'} |")
    return "\n".join(lines) + "\n"


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        below = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from _leaves(value, below)
        else:
            yield below, value


if __name__ == "__main__":
    print(settings_page(), end="")
