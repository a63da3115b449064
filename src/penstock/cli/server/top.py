"""`penstock top`: the busiest connections of a server, live."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.server.system import ask_one
from penstock.cli.values import read_positive, show_count, show_size
from penstock.cli.watch import WATCH, Figures, Rate, watch
from penstock.protocol.tables import render

HEADER = ("CID", "NAME", "ACCOUNT", "ADDRESS", "SUBS", "IN/S", "OUT/S", "PENDING")
SORTS = ("msgs_from", "msgs_to", "bytes_from", "bytes_to", "subs", "pending", "cid")


async def top(context: Context) -> None:
    """Show a server's figures and connections until Ctrl-C."""
    await watch(context, _Top(context).look)


class _Top:
    """The figures of a server and its connections, updated repeatedly."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rates: dict[tuple[int, str], Rate] = {}

    async def look(self) -> Figures:
        """Request the figures and compare them with the last ones."""
        arguments = self._context.arguments
        varz = (await ask_one(self._context, arguments.name, "VARZ"))["data"]
        options = {"auth": True, "sort": arguments.sort, "limit": arguments.connections}
        answer = await ask_one(self._context, arguments.name, "CONNZ", **options)
        connections = answer["data"].get("connections") or []
        headline = (
            f"{varz['server_name']}  {varz['version']}  up {varz['uptime']}  "
            f"cpu {varz['cpu']:.0f} %  memory {show_size(varz['mem'])}  "
            f"connections {show_count(varz['connections'])}  "
            f"in {self._rate(0, 'in', varz['in_msgs'])}/s  "
            f"out {self._rate(0, 'out', varz['out_msgs'])}/s  "
            f"slow {show_count(varz['slow_consumers'])}"
        )
        rows = render(HEADER, map(self._row, connections), left=4)
        return Figures(
            screen=f"{headline}\n\n{rows}",
            line=headline,
            document={"server": varz["server_name"], "varz": varz, "connections": connections},
        )

    def _row(self, each: dict[str, Any]) -> tuple[str, ...]:
        return (
            str(each["cid"]),
            each.get("name", ""),
            each.get("account", ""),
            f"{each['ip']}:{each['port']}",
            show_count(each["subscriptions"]),
            self._rate(each["cid"], "in", each["in_msgs"]),
            self._rate(each["cid"], "out", each["out_msgs"]),
            show_size(each["pending_bytes"]),
        )

    def _rate(self, cid: int, way: str, count: int) -> str:
        rate = self._rates.setdefault((cid, way), Rate())
        return f"{rate.per_second(count, asyncio.get_running_loop().time()):,.0f}"


TOP = Verb(
    name="top",
    summary="Show a server and its busiest connections, live.",
    run=top,
    arguments=(
        argument("name", metavar="SERVER", nargs="?", default="", doc="Its name or id."),
        argument(
            "--sort",
            metavar="FIGURE",
            choices=SORTS,
            default="msgs_from",
            doc=f"`{'`, `'.join(SORTS)}` (default: msgs_from).",
        ),
        argument(
            "--connections",
            metavar="NUMBER",
            type=read_positive,
            default=20,
            doc="Connections to show (default: 20).",
        ),
        *WATCH,
        *CONNECTION,
    ),
    endless=True,
)
