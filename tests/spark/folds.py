"""What the tests of the pipelines use as a user's own module."""

from __future__ import annotations

from typing import Any


def total(state: dict[str, Any] | None, event: dict[str, Any]) -> dict[str, Any]:
    """Add up amounts, and remember the order they came in."""
    state = state or {"total": 0, "seen": []}
    amount = event["payload"]["n"]
    return {"total": state["total"] + amount, "seen": [*state["seen"], amount]}


def large(messages: Any) -> Any:
    """Keep the messages of one subject: a pipeline of the user's own."""
    return messages.where("subject LIKE '%.3'").select("subject", "sequence")
