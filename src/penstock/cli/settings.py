"""
Settings of streams and consumers as options of a command line, and back as text.

A setting is a field of the API's configuration. Its kind defines how it is written on the
command line and how it is shown, so that the output of `info` is valid input for `create`
and `edit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli import values
from penstock.cli.arguments import Argument, argument
from penstock.cli.connection import read_text
from penstock.errors import ConfigError
from penstock.protocol import units
from penstock.protocol.suggestions import nearest

if TYPE_CHECKING:
    from argparse import Namespace

TOLD = "_nats."
"""Prefix of the metadata that the server adds to its answers."""


@dataclass(frozen=True)
class Kind:
    """How a value is written and shown."""

    metavar: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    many: bool = False
    """Whether the option is repeatable; then `read` returns a list."""
    finish: Callable[[list[Any]], Any] = list


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a configuration."""

    field: str
    kind: Kind
    doc: str
    section: str
    flag: str = ""
    """The option's name, where it differs from the field's."""
    off: str = ""
    """The option that switches it off, where it is not `--no-…`."""

    @property
    def name(self) -> str:
        """The option's name."""
        return self.flag or f"--{self.field.replace('_', '-')}"


def one_of(*choices: str) -> Kind:
    """Return the kind of a setting with these values; dashes may replace underscores."""

    def read(text: str) -> str:
        value = text.lower().replace("-", "_")
        if value in choices:
            return value
        meant = nearest(value, choices)
        hint = f"did you mean `{meant}`?" if meant else f"one of {', '.join(choices)}"
        raise ValueError(f"`{text}` is unknown; hint: {hint}")

    return Kind("|".join(choices), read)


def texts(text: str) -> list[str]:
    """Split a list separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the key and the value of `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"`{text}` is not a pair; hint: key=value")
    return [(key, value)]


def document(shorthand: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Return a reader of a JSON object that also accepts a shorthand."""

    def read(text: str) -> dict[str, Any]:
        if not text.startswith("{"):
            return shorthand(text)
        try:
            value: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"`{text}` is not JSON: {error}") from None
        return value

    return read


def by_name(text: str) -> dict[str, Any]:
    """Return the object that a name alone stands for."""
    return {"name": text}


def from_to(text: str) -> dict[str, Any]:
    """Return the subjects of `SOURCE DESTINATION`; a space separates them, as they contain none."""
    words = text.split()
    if len(words) != 2:
        raise ValueError(f"`{text}` is not a mapping; hint: 'orders.> copies.orders.>'")
    return {"src": words[0], "dest": words[1]}


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _limit(show: Callable[[int], str]) -> Callable[[int], str]:
    return lambda value: "unlimited" if value < 0 else show(value)


TEXT = Kind("TEXT", str)
NUMBER = Kind("NUMBER", units.read_size, values.show_count)
LIMIT = Kind("NUMBER", units.read_size, _limit(values.show_count))
SIZE = Kind("SIZE", units.read_size, _limit(values.show_size))
DURATION = Kind("DURATION", units.read_duration, values.show_duration)
TIME = Kind("TIME", values.read_time, values.show_time)
SWITCH = Kind("", bool, lambda value: "yes" if value else "no")
TEXTS = Kind("TEXT,…", texts, ", ".join, many=True)
SUBJECTS = Kind("SUBJECT,…", texts, ", ".join, many=True)
DURATIONS = Kind(
    "DURATION,…",
    lambda text: [units.read_duration(part) for part in texts(text)],
    lambda many: ", ".join(map(values.show_duration, many)),
    many=True,
)
METADATA = Kind(
    "KEY=VALUE",
    pairs,
    lambda value: ", ".join(f"{key}={text}" for key, text in value.items()),
    many=True,
    finish=dict,
)
NAMED = Kind("NAME|JSON", document(by_name), _compact)
MAPPING = Kind("'FROM TO'|JSON", document(from_to), _compact)
SOURCES = Kind("NAME|JSON", lambda text: [document(by_name)(text)], _compact, many=True)

CONFIG_FILE = argument(
    "--config",
    metavar="FILE",
    section="Configuration",
    doc="JSON file with settings by their API names; options override it.",
)


def options(settings: Iterable[Setting]) -> tuple[Argument, ...]:
    """Return the arguments of the settings."""
    return tuple(each for setting in settings for each in _arguments(setting))


def _arguments(setting: Setting) -> Iterable[Argument]:
    common: dict[str, Any] = {"dest": setting.field, "default": None}
    if setting.kind is SWITCH:
        common["action"] = "store_const"
        word = setting.name.removeprefix("--")
        yield argument(
            setting.name,
            doc=setting.doc,
            section=setting.section,
            shown=f"{setting.name}, {setting.off}" if setting.off else f"--[no-]{word}",
            const=True,
            **common,
        )
        yield argument(setting.off or f"--no-{word}", doc="", const=False, **common)
        return
    action = "extend" if setting.kind.many else "store"
    yield argument(
        setting.name,
        doc=setting.doc,
        section=setting.section,
        metavar=setting.kind.metavar,
        type=setting.kind.read,
        action=action,
        **common,
    )


def given(settings: Iterable[Setting], arguments: Namespace) -> dict[str, Any]:
    """Return the configuration from a file and options; settings left out stay out."""
    config = _read_file(arguments.config) if arguments.config else {}
    for setting in settings:
        value = getattr(arguments, setting.field)
        if value is not None:
            config[setting.field] = setting.kind.finish(value) if setting.kind.many else value
    return config


def _read_file(path: str) -> dict[str, Any]:
    try:
        config = json.loads(read_text("config", path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"`--config`: `{path}` is not JSON: {error}") from None
    # The output of `info --json` has the configuration inside; accept that too.
    if isinstance(config, dict) and isinstance(config.get("config"), dict):
        config = config["config"]
    if not isinstance(config, dict):
        raise ConfigError(f"`--config`: `{path}` must contain a JSON object")
    return without_told(config)


def without_told(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the metadata that the server added."""
    config = dict(config)
    metadata = {
        key: value
        for key, value in (config.pop("metadata", None) or {}).items()
        if not key.startswith(TOLD)
    }
    return {**config, "metadata": metadata} if metadata else config


def shown(settings: Sequence[Setting], config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings that have a value, as text."""
    kinds = {setting.field: setting.kind for setting in settings}
    return [
        (field, _show(kinds.get(field), value))
        for field, value in without_told(config).items()
        if value not in (None, "", 0, [], {}) and field != "name"
    ]


def _show(kind: Kind | None, value: Any) -> str:
    """Return a value as text; a value of an unknown kind as it is, or as JSON."""
    if kind is not None:
        return kind.show(value)
    return value if isinstance(value, str) else _compact(value)


def difference(
    settings: Sequence[Setting], old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the changes as text: `1h → 2h`."""
    kinds = {setting.field: setting.kind for setting in settings}

    def text(field: str, value: Any) -> str:
        if value in (None, "", [], {}):
            return "-"
        return _show(kinds.get(field), value)

    return [
        (field, f"{text(field, old.get(field))} → {text(field, new.get(field))}")
        for field in dict.fromkeys((*old, *new))
        if (old.get(field) or None) != (new.get(field) or None)
    ]
