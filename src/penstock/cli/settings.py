"""
Settings of streams and consumers as options of a command line, and back as text.

A setting is a field of the API's configuration. Its kind says how it is written on
the command line and how it is shown, so that what `info` prints can be given to
`create` and `edit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli import values as units
from penstock.cli.arguments import Argument, argument
from penstock.cli.context import read_text
from penstock.config.file.flags import nearest
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

TOLD = "_nats."
"""Metadata that the server adds to its answers."""


@dataclass(frozen=True)
class Kind:
    """How a value is written and shown."""

    metavar: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    many: bool = False
    """Whether the option may be given again; then `read` returns a list."""
    finish: Callable[[list[Any]], Any] = list


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a configuration."""

    field: str
    kind: Kind
    doc: str
    section: str
    flag: str = ""
    """How it is called here, where that differs from the field."""
    off: str = ""
    """What switches it off, where that is not `--no-…`."""

    @property
    def name(self) -> str:
        """The option's name."""
        return self.flag or f"--{self.field.replace('_', '-')}"


def one_of(*choices: str) -> Kind:
    """Return the kind of a setting that has only these values; dashes do for underscores."""

    def read(text: str) -> str:
        value = text.lower().replace("-", "_")
        if value in choices:
            return value
        meant = nearest(value, choices)
        hint = f"did you mean `{meant}`?" if meant else f"one of {', '.join(choices)}"
        raise ValueError(f"`{text}` is unknown; hint: {hint}")

    return Kind("|".join(choices), read)


def texts(text: str) -> list[str]:
    """Return the parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the key and the value of `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"`{text}` is no pair; hint: key=value")
    return [(key, value)]


def document(shorthand: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Return a reader of a JSON object, which also takes something shorter."""

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
    """Return what a name alone stands for."""
    return {"name": text}


def from_to(text: str) -> dict[str, Any]:
    """Return the subjects of `SOURCE DESTINATION`, which a space may part as they have none."""
    words = text.split()
    if len(words) != 2:
        raise ValueError(f"`{text}` is no mapping; hint: 'orders.> copies.orders.>'")
    return {"src": words[0], "dest": words[1]}


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _limit(show: Callable[[int], str]) -> Callable[[int], str]:
    return lambda value: "unlimited" if value < 0 else show(value)


TEXT = Kind("TEXT", str)
NUMBER = Kind("NUMBER", units.read_number, units.show_count)
LIMIT = Kind("NUMBER", units.read_number, _limit(units.show_count))
SIZE = Kind("SIZE", units.read_number, _limit(units.show_size))
DURATION = Kind("DURATION", units.read_duration, units.show_duration)
TIME = Kind("TIME", units.read_time, units.show_time)
SWITCH = Kind("", bool, lambda value: "yes" if value else "no")
TEXTS = Kind("TEXT,…", texts, ", ".join, many=True)
SUBJECTS = Kind("SUBJECT,…", texts, ", ".join, many=True)
DURATIONS = Kind(
    "DURATION,…",
    lambda text: [units.read_duration(part) for part in texts(text)],
    lambda values: ", ".join(map(units.show_duration, values)),
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
    doc="JSON with settings by their names in the API; options win over it.",
)


def options(settings: Iterable[Setting]) -> tuple[Argument, ...]:
    """Return the arguments that stand for settings."""
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
    """Return the configuration that a file and options ask for; what they leave out stays out."""
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
    # What `info --json` prints has the configuration inside, and is a natural thing to give.
    if isinstance(config, dict) and isinstance(config.get("config"), dict):
        config = config["config"]
    if not isinstance(config, dict):
        raise ConfigError(f"`--config`: `{path}` must hold an object")
    return without_told(config)


def without_told(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what the server says about itself in it."""
    config = dict(config)
    metadata = {
        key: value
        for key, value in (config.pop("metadata", None) or {}).items()
        if not key.startswith(TOLD)
    }
    return {**config, "metadata": metadata} if metadata else config


def shown(settings: Sequence[Setting], config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of a configuration that say something, as text."""
    kinds = {setting.field: setting.kind for setting in settings}
    return [
        (field, _show(kinds.get(field), value))
        for field, value in without_told(config).items()
        if value not in (None, "", 0, [], {}) and field != "name"
    ]


def _show(kind: Kind | None, value: Any) -> str:
    """Return a value as text; one we know nothing about as it is, or as JSON."""
    if kind is not None:
        return kind.show(value)
    return value if isinstance(value, str) else _compact(value)


def difference(
    settings: Sequence[Setting], old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return what would change, as text: `1h → 2h`."""
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
