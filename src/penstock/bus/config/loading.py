"""
Reading the configuration: files, environment variables, presets.

Values are checked against the annotation of their field, so a new setting needs
nothing here. A key that does not exist is an error which names the nearest.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.bus.config.bus import PRESETS, BusConfig, TopicOptions
from penstock.config.setting import key_of
from penstock.errors import ConfigError, MissingExtra
from penstock.protocol.suggestions import nearest
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import duration_of, size_of

ENVIRONMENT_PREFIX = "PENSTOCK_BUS_"
PRESET_VARIABLE = ENVIRONMENT_PREFIX + "PRESET"

ADDRESSES = {"nats": "urls", "kafka": "brokers"}
"""The setting of each engine that names its broker."""
TRUTHS = {"true": True, "yes": True, "on": True, "1": True}
FALSEHOODS = {"false": False, "no": False, "off": False, "0": False}


def load_config(
    source: Mapping[str, Any] | str | Path | None = None,
    *,
    preset: str = "",
    environment: Mapping[str, str] | None = None,
) -> BusConfig:
    """Return the configuration of a YAML file or mapping, over a preset, under the environment."""
    environment = os.environ if environment is None else environment
    tree = _tree_of(source)
    variables = environment_tree(environment)
    chosen = environment.get(PRESET_VARIABLE) or str(tree.pop("preset", "")) or preset
    layers = [preset_tree(chosen or "balanced"), tree, variables]
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer)
    merged.setdefault("type", _engine_of(merged))
    config: BusConfig = build(BusConfig, merged, "eventbus")
    return config


def _engine_of(tree: Mapping[str, Any]) -> str:
    """
    Return the engine whose addresses are given; without any, it is the embedded one.

    An embedded bus without a directory forgets everything when it closes, so it must not take the
    place of a broker that somebody named.
    """
    sections = {engine: tree.get(engine) for engine in ADDRESSES}
    given = [
        engine
        for engine, section in sections.items()
        if isinstance(section, Mapping) and ADDRESSES[engine] in section
    ]
    if len(given) > 1:
        settings = " and ".join(f"`{engine}.{ADDRESSES[engine]}`" for engine in given)
        raise ConfigError(f"{settings} are both set; hint: say which one counts with `type`")
    return given[0] if given else "embedded"


def preset_tree(name: str) -> Mapping[str, Any]:
    """Return what a preset changes."""
    if name not in PRESETS:
        raise ConfigError(f"`preset`: `{name}` is unknown{_nearest(name, PRESETS)}")
    return PRESETS[name]


def environment_tree(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the tree that the variables of the bus spell."""
    paths = dict(_paths(BusConfig, ()))
    tree: dict[str, Any] = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name == PRESET_VARIABLE:
            continue
        if name not in paths:
            raise ConfigError(f"variable `{name}` is unknown{_nearest(name, paths)}")
        branch = tree
        *sections, key = paths[name]
        for one in sections:
            branch = branch.setdefault(one, {})
        branch[key] = value
    return tree


def build(kind: Any, tree: Any, path: str) -> Any:
    """Make a dataclass out of a tree whose keys are those of a file."""
    tree = _section(tree, path)
    hints = get_type_hints(kind)
    items = {key_of(item): item for item in fields(kind)}
    values = {}
    _check_doubles(tree, path)
    for key, value in tree.items():
        item = items.get(_snake_case(str(key)))
        if item is None:
            raise ConfigError(f"`{path}.{key}` is unknown{_nearest(str(key), items)}")
        values[item.name] = _read(hints[item.name], value, f"{path}.{key}")
    return kind(**values)


def _section(tree: Any, path: str) -> Mapping[str, Any]:
    if tree is None:  # as when all its keys are commented out
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"`{path}` must be a section with keys, not {tree!r}")
    for key in tree:
        if not isinstance(key, str):
            raise ConfigError(f"`{path}`: the name {key!r} is not text; hint: put it in quotes")
    return tree


def with_settings(config: BusConfig, settings: Mapping[str, Any]) -> BusConfig:
    """Return a configuration with what a program gives by the names of fields."""
    hints = get_type_hints(BusConfig)
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(f"`{name}` is unknown{_nearest(name, hints)}")
        section = hints[name]
        if isinstance(section, type) and is_dataclass(section) and not isinstance(value, section):
            raise ConfigError(f"`{name}` must be a `{section.__name__}(…)`, not {value!r}")
    return replace(config, **settings)


def _check_doubles(tree: Mapping[str, Any], path: str) -> None:
    """Refuse a key that is there twice, in two spellings."""
    seen: dict[str, str] = {}
    for key in map(str, tree):
        other = seen.setdefault(_snake_case(key), key)
        if other != key:
            raise ConfigError(f"`{path}`: `{other}` and `{key}` are the same; hint: leave one out")


def _tree_of(source: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, Mapping):
        tree: Any = source
    else:
        tree = _parse_yaml(_text_of(source) if isinstance(source, Path) else source)
    if not isinstance(tree, Mapping):
        raise ConfigError("the configuration must be a mapping: `eventbus: {...}`")
    inner = tree.get("eventbus", tree)
    unknown = [key for key in tree if key != "eventbus"] if "eventbus" in tree else []
    if unknown:
        raise ConfigError(f"`{unknown[0]}` is unknown beside `eventbus`")
    if inner is None:
        return {}
    if not isinstance(inner, Mapping):
        raise ConfigError("`eventbus` must be a section with keys")
    return dict(inner)


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}") from None


def _parse_yaml(text: str) -> Any:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise MissingExtra("YAML needs a package; hint: pip install 'penstock[bus]'") from None
    try:
        return yaml.load(text, Loader=_strict(yaml))
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}") from error


def _strict(yaml: Any) -> Any:
    """Return a loader that does not let the second of two equal keys win in silence."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads plain YAML."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """Make a mapping, of keys that are all different."""
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            doubles = [key for key in keys if keys.count(key) > 1]
            if doubles:
                place = f"line {node.start_mark.line + 1}"
                raise ConfigError(f"`{doubles[0]}` is there twice, in the section of {place}")
            return super().construct_mapping(node, deep)

    return Loader


def _merge(target: dict[str, Any], layer: Mapping[str, Any]) -> None:
    _check_doubles(layer, "eventbus")
    for key, value in layer.items():
        name = _snake_case(str(key))
        if isinstance(value, Mapping) and name != "topics":
            branch = target.get(name) or {}
            if not isinstance(branch, dict):
                raise ConfigError(f"`{name}` must be a section with keys, not {branch!r}")
            target[name] = branch
            _merge(branch, value)
        else:
            target[name] = value


def _paths(kind: Any, sections: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Iterate over environment variables and the path of keys that each stands for."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        path = (*sections, key_of(item))
        if is_dataclass(hints[item.name]):
            yield from _paths(hints[item.name], path)
        elif get_origin(hints[item.name]) is not Mapping:
            yield ENVIRONMENT_PREFIX + "_".join(path).upper(), path


def _read(hint: Any, value: Any, path: str) -> Any:
    """Return a value as its field's annotation wants it."""
    if is_dataclass(hint):
        return build(hint, value, path)
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    if get_origin(hint) is Literal:
        return _read_choice(get_args(hint), value, path)
    if get_origin(hint) is tuple:
        values = value if isinstance(value, list | tuple) else _read_str(value, path).split(",")
        return tuple(str(one).strip() for one in values)
    if get_origin(hint) is not None and get_args(hint)[1] is str:
        return _read_properties(value, path)
    if get_origin(hint) is not None:
        return {
            str(topic): build(TopicOptions, options, f"{path}.{topic}")
            for topic, options in _section(value, path).items()
        }
    return _READERS[hint](value, path)


def _read_properties(value: Any, path: str) -> dict[str, str]:
    section = _section(value, path)
    return {str(name): _read_str(one, f"{path}.{name}") for name, one in section.items()}


def _read_choice(choices: tuple[str, ...], value: Any, path: str) -> str:
    name = _snake_case(str(value)).replace("-", "_")
    if name not in choices:
        raise ConfigError(f"`{path}` must be one of {', '.join(choices)}, not {value!r}")
    return name


def _read_bool(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    known = TRUTHS | FALSEHOODS
    if str(value).lower() not in known:
        raise ConfigError(f"`{path}` must be true or false, not {value!r}")
    return known[str(value).lower()]


def _read_int(value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    size = size_of(str(value).strip().replace("_", ""))
    if size is None or size < 0:
        raise ConfigError(f"`{path}` must be a number such as 1000 or 64MB, not {value!r}")
    return size


def _read_float(value: Any, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = str(value).strip().lower()
    if (duration_ns := duration_of(text)) is not None:
        return duration_ns / SECOND_NS
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"`{path}` must be a number, or a time as 30s, not {value!r}") from None


def _read_str(value: Any, path: str) -> str:
    if value is None:
        raise ConfigError(f"`{path}` has no value; hint: give it one, or leave the key out")
    if not isinstance(value, str):
        raise ConfigError(f"`{path}` must be text, not {value!r}; hint: put it in quotes")
    return value


_READERS: Mapping[Any, Any] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
}


def _snake_case(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    meant = nearest(_snake_case(name), {key.lower(): key for key in known})
    return f"; hint: `{next(key for key in known if key.lower() == meant)}`" if meant else ""
