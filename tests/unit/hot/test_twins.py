"""The two twins as wholes: the names they have, and the constants they must agree on."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from benchmarks.twins import works
from tests.compiled import compiled_twin

from penstock import hot
from penstock.hot import answers, consuming, deliveries, fanout, outbox, records, s2, wire

REFERENCES = (wire, fanout, outbox, records, s2)
"""The modules whose constants the compiled twin exports."""
DEFINING = (*REFERENCES, deliveries, consuming, answers)
TWINS = sorted(set(hot.__all__) - {"COMPILED"})
FUNCTIONS = sorted(set(TWINS) - {"Outlet", "Receiver"})
MEASURED = sorted(set(TWINS) - {"Receiver"})
"""A receiver does nothing by itself: what its fields gain is the gain of `fan_out`."""
GAIN = re.compile(r"The compiled twin is ([0-9.]+) x as fast\.")


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


def reference(name: str) -> Any:
    """Return the Python twin of this name, from the module that defines it."""
    return next(
        vars(module)[name]
        for module in DEFINING
        if getattr(vars(module).get(name), "__module__", "") == module.__name__
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_function_has_the_parameters_of_its_twin(name: str) -> None:
    compiled = inspect.signature(vars(compiled_twin())[name]).parameters.values()
    expected = inspect.signature(reference(name)).parameters.values()

    assert [(one.name, one.kind) for one in compiled] == [(one.name, one.kind) for one in expected]


@pytest.mark.parametrize("name", ["Outlet", "Receiver"])
def test_a_compiled_type_has_the_names_of_its_twin(name: str) -> None:
    def public(one: type) -> set[str]:
        return {each for each in vars(one) if not each.startswith("_")}

    assert public(vars(compiled_twin())[name]) == public(reference(name))


def test_the_stub_describes_the_compiled_module() -> None:
    compiled_twin()
    command = [sys.executable, "-m", "mypy.stubtest", "penstock.hot._speedups"]
    checked = subprocess.run(command, capture_output=True, text=True)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", MEASURED)
def test_a_twin_says_what_it_gains(name: str) -> None:
    found = GAIN.search(reference(name).__doc__)

    assert found is not None
    assert float(found[1]) > 1


def test_every_twin_is_measured() -> None:
    assert sorted(work.name for work in works()) == MEASURED
