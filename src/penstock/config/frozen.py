"""
`dataclass`, for the frozen classes of settings, without code that is compiled at each start.

The standard one compiles six methods for every class. For dozens of such classes that was an
eighth of a server's start, and few of their objects are ever made. These classes share methods
that walk the fields. `fields`, `replace` and `asdict` work as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Literal, TypeVar

T = TypeVar("T")


def _init(self: Any, /, **given: Any) -> None:
    values, missing = {}, []
    for item in fields(self):
        if item.name in given:
            values[item.name] = given.pop(item.name)
        elif item.default is not MISSING:
            values[item.name] = item.default
        elif item.default_factory is not MISSING:
            values[item.name] = item.default_factory()
        else:
            missing.append(item.name)
    if given:
        raise TypeError(f"{_name(self)}() got an unexpected keyword argument '{min(given)}'")
    if missing:
        raise TypeError(f"{_name(self)}() needs the keyword arguments {', '.join(missing)}")
    vars(self).update(values)
    if hasattr(self, "__post_init__"):
        self.__post_init__()


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr]
    return f"{_name(self)}({', '.join(shown)})"


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, item.name) for item in fields(self) if item.compare)


def _eq(self: Any, other: Any) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _name(self: Any) -> str:
    return type(self).__qualname__


class _Signature:
    """The fields as `help` and notebooks show them. `inspect` takes long to import, so: later."""

    def __get__(self, made: Any, owner: type) -> Any:
        from inspect import Parameter, Signature

        def default(item: dataclasses.Field[Any]) -> Any:
            if item.default_factory is not MISSING:
                return item.default_factory()
            return Parameter.empty if item.default is MISSING else item.default

        kind = Parameter.KEYWORD_ONLY
        return Signature(
            [
                Parameter(item.name, kind, default=default(item), annotation=item.type)
                for item in fields(owner)
            ]
        )


METHODS = {
    "__signature__": _Signature(),
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _set,
    "__delattr__": _delete,
}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: Literal[True], kw_only: Literal[True]) -> Callable[[type[T]], type[T]]:
        """Make a class a dataclass; its flags are spelled out for type checkers."""

        def make(made: type[T]) -> type[T]:
            for name, method in METHODS.items():
                setattr(made, name, method)
            return dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(made)

        return make
