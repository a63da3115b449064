"""
`/pipelinez`: the progress of Spark pipelines, as they report it.

A pipeline reads ranges of a stream and has no consumer that the server could count. So it
reports: a JSON document on `$PENSTOCK.PIPELINE` after each micro-batch. The server keeps
the last valid report of each pipeline, for the console.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.core.account import Account
from penstock.core.runs import payloads
from penstock.hot.wire import HEADER_BYTES, Op
from penstock.protocol import times, wellknown

if TYPE_CHECKING:
    from penstock.core.session import Session

SUBJECT = wellknown.PIPELINE.encode()
TEXTS = ("name", "stream")
NUMBERS = ("batch", "rows_per_s", "behind_messages", "behind_s")
PIPELINES_MAX = 256
"""The maximum number of reports. The account with the most loses its oldest one."""
REPORT_BYTES_MAX = 4096
NUMBER_MAX = 2**63


class Pipelines:
    """The last report of each pipeline."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._last: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {}
        """By account and name; in each account the oldest report first."""

    def listen(self, account: Account) -> None:
        """Listen for the reports of an account."""
        account.listen(SUBJECT, partial(self._hear, account.name))

    def view(self) -> dict[str, Any]:
        """Return all reports, sorted by account and name."""
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
                report = read_report(payload[publish[HEADER_BYTES] : -2])
                if report is not None:
                    self.keep(account, report)

    def keep(self, account: str, report: dict[str, Any]) -> None:
        """Keep the report of a pipeline."""
        pipelines = self._last.setdefault(account, {})
        pipelines.pop(report["name"], None)
        pipelines[report["name"]] = (self._clock_ns(), report)
        if sum(map(len, self._last.values())) > PIPELINES_MAX:
            self._forget_one()

    def _forget_one(self) -> None:
        """Drop the oldest report of the account with the most."""
        account = max(self._last, key=lambda name: len(self._last[name]))
        pipelines = self._last[account]
        del pipelines[next(iter(pipelines))]
        if not pipelines:
            del self._last[account]


def read_report(payload: bytes) -> dict[str, Any] | None:
    """Return the fields of a report, or None if it is invalid."""
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
    """Tell whether a value is a number that JSON can carry and a chart can draw (not `1e999`)."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < NUMBER_MAX  # type: ignore[arg-type]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
