"""
`/pipelinez`: how far Spark pipelines are, as they say themselves.

A pipeline reads ranges of a stream and has no consumer that the server could count, so it
tells: a JSON document on `$PENSTOCK.PIPELINE` after each micro-batch. The last one of
each pipeline is kept, for the dashboard; what makes no sense is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.core.account import Account, payloads
from penstock.hot.wire import Op
from penstock.protocol import times

if TYPE_CHECKING:
    from penstock.core.session import Session

SUBJECT = b"$PENSTOCK.PIPELINE"
TEXTS = ("name", "stream")
NUMBERS = ("batch", "rows_per_s", "behind_messages", "behind_s")
PIPELINES_MAX = 256
"""Pipelines that are remembered. The account with the most loses the one silent for longest."""
REPORT_BYTES_MAX = 4096
NUMBER_MAX = 2**63


class Pipelines:
    """The last word of each pipeline."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._last: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {}
        """By account and name, in each account the one silent for longest first."""

    def listen(self, account: Account) -> None:
        """Hear the pipelines of an account."""
        account.listen(SUBJECT, partial(self._hear, account.name))

    def view(self) -> dict[str, Any]:
        """Return what is known, by name."""
        now_ns = self._clock_ns()
        return {
            "pipelines": [
                {"account": account, **report, "age_s": (now_ns - heard_ns) / times.SECOND_NS}
                for account, pipelines in sorted(self._last.items())
                for _, (heard_ns, report) in sorted(pipelines.items())
            ]
        }

    def _hear(self, account: str, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            for payload in payloads(publish):
                report = read_report(payload[publish[3] : -2])
                if report is not None:
                    self.keep(account, report)

    def keep(self, account: str, report: dict[str, Any]) -> None:
        """Take over the last word of a pipeline."""
        pipelines = self._last.setdefault(account, {})
        pipelines.pop(report["name"], None)
        pipelines[report["name"]] = (self._clock_ns(), report)
        if sum(map(len, self._last.values())) > PIPELINES_MAX:
            self._forget_one()

    def _forget_one(self) -> None:
        """Make room at the cost of whoever takes most of it."""
        account = max(self._last, key=lambda name: len(self._last[name]))
        pipelines = self._last[account]
        del pipelines[next(iter(pipelines))]
        if not pipelines:
            del self._last[account]


def read_report(payload: bytes) -> dict[str, Any] | None:
    """Return the fields of a report, or None if it is none."""
    if len(payload) > REPORT_BYTES_MAX:
        return None
    try:
        document = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    texts = {name: document.get(name) for name in TEXTS}
    numbers = {name: document.get(name) for name in NUMBERS}
    if not all(isinstance(value, str) for value in texts.values()):
        return None
    if not all(map(_is_figure, numbers.values())):
        return None
    return texts | numbers


def _is_figure(value: object) -> bool:
    """Tell whether others can read it in JSON, and draw it: `1e999` is read as infinity."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < NUMBER_MAX  # type: ignore[arg-type]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
