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
from typing import TYPE_CHECKING, Any

from penstock import times
from penstock.core.account import Account, payloads
from penstock.wire import Op

if TYPE_CHECKING:
    from penstock.core.session import Session

SUBJECT = b"$PENSTOCK.PIPELINE"
TEXTS = ("name", "stream")
NUMBERS = ("batch", "rows_per_s", "behind_messages", "behind_s")
PIPELINES_MAX = 256
"""Pipelines that are remembered; the one that was silent for longest goes first."""
REPORT_BYTES_MAX = 4096


class Pipelines:
    """The last word of each pipeline."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._last: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}

    def listen(self, account: Account) -> None:
        """Hear the pipelines of an account."""
        account.listen(SUBJECT, partial(self._hear, account.name))

    def view(self) -> dict[str, Any]:
        """Return what is known, by name."""
        now_ns = self._clock_ns()
        return {
            "pipelines": [
                {"account": account, **report, "age_s": (now_ns - heard_ns) / times.SECOND_NS}
                for (account, _), (heard_ns, report) in sorted(self._last.items())
            ]
        }

    def _hear(self, account: str, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            for payload in payloads(publish):
                report = read_report(payload[publish[3] : -2])
                if report is not None:
                    self._keep(account, report)

    def _keep(self, account: str, report: dict[str, Any]) -> None:
        key = (account, report["name"])
        self._last.pop(key, None)
        self._last[key] = (self._clock_ns(), report)
        if len(self._last) > PIPELINES_MAX:
            del self._last[next(iter(self._last))]


def read_report(payload: bytes) -> dict[str, Any] | None:
    """Return the fields of a report, or None if it is none."""
    if len(payload) > REPORT_BYTES_MAX:
        return None
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    texts = {name: document.get(name) for name in TEXTS}
    numbers = {name: document.get(name) for name in NUMBERS}
    if not all(isinstance(value, str) for value in texts.values()):
        return None
    if not all(isinstance(value, int | float) for value in numbers.values()):
        return None
    return texts | numbers
