"""Whatever the message and its receivers, the compiled twin does what the reference does."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
from tests.fuzz.fanout import examples, outcomes
from tests.fuzz.memory import keeps_memory

from penstock.hot import fanout


def test_the_twins_agree_on_examples_mostly_well_formed(compiled: ModuleType) -> None:
    for example in itertools.islice(examples(seed=4222), 2000):
        assert outcomes(fanout, example) == outcomes(compiled, example)


def test_the_compiled_twin_keeps_no_memory(compiled: ModuleType) -> None:
    inputs = list(itertools.islice(examples(seed=1), 300))

    def use_everything() -> None:
        for example in inputs:
            outcomes(compiled, example)

    assert not keeps_memory(use_everything)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (((b"1", (7,)),), (), ()),
        (((b"1",),), (), ()),
        ((7,), (), ()),
        ((), (7,), ()),
        ((), (), (7,)),
        ((), (), ((),)),
        (7, (), ()),
    ],
)
def test_what_is_no_receiver_is_an_error(
    compiled: ModuleType, arguments: tuple[object, ...]
) -> None:
    publish = (0, b"a", b"", 0, 1, b"x\r\n")

    with pytest.raises((TypeError, IndexError, SystemError)):
        compiled.fan_out(*arguments, publish, lambda: 0.0)


def test_a_receiver_without_an_outlet_is_an_error(compiled: ModuleType) -> None:
    publish = (0, b"a", b"", 0, 1, b"x\r\n")
    blank_outlet = compiled.Outlet.__new__(compiled.Outlet)
    blank_receiver = compiled.Receiver.__new__(compiled.Receiver)
    of_nobody = compiled.Receiver(None, b"1")
    of_blank = compiled.Receiver(blank_outlet, b"1")

    for receiver in (blank_receiver, of_nobody, of_blank):
        with pytest.raises(TypeError):
            compiled.fan_out((), (receiver,), (), publish, lambda: 0.0)
    with pytest.raises(TypeError):
        blank_outlet.mark_dirty()
