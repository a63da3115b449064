"""Our `dataclass` for settings beside the standard one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from penstock.config import frozen, server
from penstock.config.server import ServerConfig


def make(decorator: Callable[..., Any]) -> Any:
    @decorator(frozen=True, kw_only=True)
    class Settings:
        """What a test sets."""

        name: str
        secret: str = field(default="", repr=False)
        rooms: dict[str, int] = field(default_factory=dict)

        def __post_init__(self) -> None:
            if self.name == "bad":
                raise ValueError(self.name)

    return Settings


STANDARD, OURS = make(dataclasses.dataclass), make(frozen.dataclass)
BOTH = pytest.mark.parametrize("settings", [STANDARD, OURS])


def test_objects_are_shown_alike() -> None:
    given = {"name": "a", "secret": "s", "rooms": {"x": 1}}

    assert repr(OURS(**given)) == repr(STANDARD(**given))


def test_their_arguments_are_shown_by_help() -> None:
    shown = str(inspect.signature(OURS))

    assert shown == "(*, name: 'str', secret: 'str' = '', rooms: 'dict[str, int]' = {})"
    assert "http_port" in inspect.signature(ServerConfig).parameters


@BOTH
def test_equal_fields_make_equal_objects(settings: Any) -> None:
    assert settings(name="a") == settings(name="a", rooms={})
    assert settings(name="a") != settings(name="b")
    assert settings(name="a") != dataclasses.make_dataclass("Other", ["name"])("a")


@BOTH
def test_equal_objects_have_one_hash(settings: Any) -> None:
    assert hash(settings(name="a", rooms=())) == hash(settings(name="a", rooms=()))


@BOTH
def test_fields_cannot_be_set_or_deleted(settings: Any) -> None:
    made = settings(name="a")

    with pytest.raises(FrozenInstanceError, match="name"):
        made.name = "b"
    with pytest.raises(FrozenInstanceError, match="name"):
        del made.name


@BOTH
@pytest.mark.parametrize(
    ("given", "named"),
    [({}, "name"), ({"name": "a", "nmae": "b"}, "nmae")],
)
def test_wrong_arguments_are_named(settings: Any, given: dict[str, str], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        settings(**given)


@BOTH
def test_arguments_have_names(settings: Any) -> None:
    with pytest.raises(TypeError, match="positional"):
        settings("a")


@BOTH
def test_objects_are_checked_when_they_are_made(settings: Any) -> None:
    with pytest.raises(ValueError, match="bad"):
        dataclasses.replace(settings(name="a"), name="bad")


@BOTH
def test_each_object_has_its_own_default(settings: Any) -> None:
    assert settings(name="a").rooms is not settings(name="a").rooms


def test_settings_can_be_copied_and_pickled() -> None:
    config = ServerConfig(port=1234)

    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert dataclasses.asdict(config)["port"] == 1234


def test_no_class_of_settings_has_compiled_methods() -> None:
    found = [each for each in vars(server).values() if dataclasses.is_dataclass(each)]

    assert ServerConfig in found
    assert [
        each for each in found if vars(each)["__init__"].__code__.co_filename == "<string>"
    ] == []
