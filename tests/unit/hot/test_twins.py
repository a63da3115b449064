"""The two twins as wholes: the names they have, and the constants they must agree on."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests.compiled import compiled_twin

from penstock import hot
from penstock.hot import fanout, outbox, records, s2, wire

REFERENCES = (wire, fanout, outbox, records, s2)


def constants_of(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if name.isupper()]


@pytest.mark.parametrize("name", constants_of(compiled_twin()))
def test_a_constant_of_the_compiled_twin_is_that_of_python(name: str) -> None:
    expected = [vars(each)[name] for each in REFERENCES if name in vars(each)]

    assert expected, f"no Python twin has {name}"
    assert {getattr(compiled_twin(), name)} == set(expected)


def test_the_fields_and_kinds_of_operations_are_exported() -> None:
    kinds = {"PUB", "SUB", "UNSUB", "CONNECT", "PING", "PONG", "OK", "FAIL", "MSG", "INFO", "ERR"}
    fields = {"KIND", "SUBJECT", "REPLY", "HEADER_BYTES", "SIZE", "DATA"}

    assert kinds | fields <= set(constants_of(compiled_twin()))


def test_every_compiled_name_has_a_twin_that_is_picked() -> None:
    public = {name for name in vars(compiled_twin()) if not name.startswith("_")}

    assert public - set(constants_of(compiled_twin())) == set(hot.__all__) - {"COMPILED"}
