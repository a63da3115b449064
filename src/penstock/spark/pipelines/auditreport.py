"""The findings of an audit, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

ROWS_MAX = 1000
"""Aggregates a report names; the table in `target` has all of them."""

MEANINGS = {
    "published": "messages in the stream",
    "archived": "rows of the lake",
    "waiting": "in the stream, and the archive has not come to them yet",
    "removed": "in the lake, and removed from the stream since, by its limits or by hand",
    "handled": "entries in the table of what was handled",
    "missing": "in the stream, and not in the lake although the archive is past them",
    "lost": "removed from the stream before they were archived",
    "duplicated": "in the lake more than once",
    "changed": "in the lake with another content than in the stream",
    "foreign": "in the lake, and never in the stream",
    "unknown": "removed from the stream, not in the lake, and perhaps on subjects that are read",
    "unhandled": "events that nobody handled",
    "handled twice": "events that were handled more than once",
    "out of order": "events handled after one that was published later",
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
  color: light-dark(#222, #ddd); background: light-dark(#fff, #181818); color-scheme: light dark }
table { border-collapse: collapse; margin: 1em 0 } th { text-align: left; font-weight: 600 }
td, th { padding: .25em .9em .25em 0; border-bottom: 1px solid #8884; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.wrong { color: light-dark(#b00020, #ff8a80); font-weight: 600 } .scroll { overflow-x: auto }
"""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The outcome of one."""

    source: str
    lake: str
    totals: Mapping[str, int]
    findings: Sequence[str]
    """The kinds of counts that must be 0."""
    rows: Sequence[Mapping[str, Any]]
    """The aggregates of which something was found."""

    @property
    def found(self) -> dict[str, int]:
        """The kinds of findings, and how many there are of each."""
        return {kind: self.totals[kind] for kind in self.findings if self.totals[kind]}


def document(audit: Audit) -> str:
    """Return the report as JSON."""
    return json.dumps(
        {
            "clean": not audit.found,
            "source": audit.source,
            "lake": audit.lake,
            "totals": dict(audit.totals),
            "aggregates": [dict(row) for row in audit.rows],
        },
        indent=2,
        ensure_ascii=False,
    )


def page(audit: Audit) -> str:
    """Return the report as one page of HTML: no script, no file beside it."""
    verdict = ", ".join(f"{count:,} {kind}" for kind, count in audit.found.items())
    title = f"Audit of {audit.source}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
        f"<p>Compared with <code>{escape(audit.lake)}</code>: "
        f"{f'<span class=wrong>{escape(verdict)}</span>' if verdict else 'all is well'}.</p>"
        f"{_totals(audit)}{_aggregates(audit)}</html>\n"
    )


def _totals(audit: Audit) -> str:
    lines = "".join(
        f'<tr{_class(kind in audit.found)}><th>{kind}</th><td class="number">{count:,}</td>'
        f"<td>{MEANINGS[kind]}</td></tr>"
        for kind, count in audit.totals.items()
    )
    return f"<table>{lines}</table>"


def _aggregates(audit: Audit) -> str:
    if not audit.rows:
        return ""
    kinds = list(audit.found)
    heads = "".join(f"<th>{each}</th>" for each in ("aggregate", *kinds, "first sequence"))
    lines = "".join(
        f"<tr><td>{escape(str(row['aggregate']))}</td>"
        + "".join(f'<td class="number">{row[kind]:,}</td>' for kind in kinds)
        + f'<td class="number">{"" if row["first"] is None else row["first"]}</td></tr>'
        for row in audit.rows
    )
    more = "<p>Only the first are shown.</p>" if len(audit.rows) == ROWS_MAX else ""
    return f'<h2>Where</h2><div class="scroll"><table><tr>{heads}</tr>{lines}</table></div>{more}'


def _class(is_wrong: bool) -> str:
    return ' class="wrong"' if is_wrong else ""
