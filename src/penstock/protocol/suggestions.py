"""The name a person probably meant: "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, if any is similar at all."""
    # Few runs need it, and a server should start fast.
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return close[0] if close else None
