"""How much work something is, counted: the same on a busy machine as on a quiet one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def returned(portions: Generator[None, None, Result]) -> Result:
    """Go through work that is done in portions; return what it returns."""
    while True:
        try:
            next(portions)
        except StopIteration as end:
            result: Result = end.value
            return result


def work_of(action: Callable[[], Any]) -> int:
    """Return how many lines of Python, and calls into C, an action takes."""
    count = 0

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return on_line

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "c_call"

    outer, outer_profile = sys.gettrace(), sys.getprofile()
    sys.settrace(on_line)
    sys.setprofile(on_call)
    try:
        action()
    finally:
        sys.settrace(outer)
        sys.setprofile(outer_profile)
    return count
