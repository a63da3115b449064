"""`penstock server`: check, list and control servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.confirm import FORCE, confirm
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.runner import run_command
from penstock.cli.server import check
from penstock.cli.server.system import ask_all, ask_one
from penstock.cli.terminal import table
from penstock.cli.values import show_count, show_size

Row = Callable[[dict[str, Any]], tuple[str, ...]]


def run(arguments: list[str]) -> int:
    """Run `penstock server` and return the exit code."""
    return run_command("server", VERBS, arguments)


async def ping(context: Context) -> None:
    """Print the time that each server took to answer."""
    answers = await ask_all(context)
    rows = [
        (each["server"]["name"], each["server"]["ver"], f"{each['rtt_s'] * 1000:.2f} ms")
        for each in answers
    ]
    documents = [{**each["server"], "rtt_s": each["rtt_s"]} for each in answers]
    context.show(table(("SERVER", "VERSION", "RTT"), rows, left=2), documents)


async def list_servers(context: Context) -> None:
    """Print figures of each server."""
    answers = await ask_all(context, "SERVER.PING.VARZ")
    views = [each["data"] for each in answers]
    header = ("SERVER", "VERSION", "UPTIME", "CONNECTIONS", "SUBS", "CPU", "MEMORY", "SLOW")
    rows = [
        (
            view["server_name"],
            view["version"],
            view["uptime"],
            show_count(view["connections"]),
            show_count(view["subscriptions"]),
            f"{view['cpu']:.0f} %",
            show_size(view["mem"]),
            show_count(view["slow_consumers"]),
        )
        for view in views
    ]
    context.show(table(header, rows, left=2), views)


async def report(context: Context) -> None:
    """Print a table about connections, accounts, JetStream or health."""
    header, left, row, options, what = REPORTS[context.arguments.what]
    answers = await ask_all(context, what, **options)
    rows = [line for each in answers for line in row(each["server"]["name"], each["data"])]
    context.show(table(header, rows, left=left), [each["data"] for each in answers])


async def reload(context: Context) -> None:
    """Have a server read its configuration again."""
    answer = await ask_one(context, context.arguments.name, "RELOAD")
    context.done(f"reloaded `{answer['server']['name']}`", answer)


async def kick(context: Context) -> None:
    """Close a connection."""
    arguments = context.arguments
    confirm(f"Close connection {arguments.cid}?", force=arguments.force)
    answer = await ask_one(context, arguments.name, "KICK", cid=arguments.cid)
    context.done(f"closed connection {arguments.cid}", answer)


async def lame_duck(context: Context) -> None:
    """Ask a client to move to another server."""
    arguments = context.arguments
    answer = await ask_one(context, arguments.name, "LDM", cid=arguments.cid)
    context.done(f"asked connection {arguments.cid} to move to another server", answer)


def _connections(server: str, data: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            server,
            str(each["cid"]),
            each.get("name", ""),
            each.get("account", ""),
            f"{each['ip']}:{each['port']}",
            show_count(each["subscriptions"]),
            show_count(each["in_msgs"]),
            show_count(each["out_msgs"]),
            show_size(each["pending_bytes"]),
        )
        for each in data.get("connections") or ()
    ]


def _accounts(server: str, data: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            server,
            each["acc"],
            show_count(each["conns"]),
            show_count(each["num_subscriptions"]),
            show_count(each["received"]["msgs"]),
            show_count(each["sent"]["msgs"]),
            show_count(each["slow_consumers"]),
        )
        for each in data.get("account_statz") or ()
    ]


def _jetstream(server: str, data: dict[str, Any]) -> list[tuple[str, ...]]:
    if data.get("disabled"):
        return [(server, "off")]
    limit = data["config"]["max_storage"]
    return [
        (
            server,
            "on",
            show_count(data["streams"]),
            show_count(data["consumers"]),
            show_count(data["messages"]),
            show_size(data["storage"]),
            show_size(limit) if limit > 0 else "unlimited",
            show_count(data["api"]["errors"]),
        )
    ]


def _health(server: str, data: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(server, data["status"], data.get("error", ""))]


REPORTS: dict[str, tuple[tuple[str, ...], int, Any, dict[str, Any], str]] = {
    "connections": (
        ("SERVER", "CID", "NAME", "ACCOUNT", "ADDRESS", "SUBS", "IN", "OUT", "PENDING"),
        5,
        _connections,
        {"auth": True, "limit": 1024},
        "SERVER.PING.CONNZ",
    ),
    "accounts": (
        ("SERVER", "ACCOUNT", "CONNECTIONS", "SUBS", "RECEIVED", "SENT", "SLOW"),
        2,
        _accounts,
        {"include_unused": True},
        "ACCOUNT.PING.STATZ",
    ),
    "jetstream": (
        ("SERVER", "STATE", "STREAMS", "CONSUMERS", "MESSAGES", "STORAGE", "LIMIT", "API ERRORS"),
        2,
        _jetstream,
        {},
        "SERVER.PING.JSZ",
    ),
    "health": (("SERVER", "STATUS", "ERROR"), 3, _health, {}, "SERVER.PING.HEALTHZ"),
}

SERVER = argument("name", metavar="SERVER", nargs="?", default="", doc="Its name or id.")
CID = argument("cid", metavar="CID", type=int, doc="Number of the connection.")

VERBS = (
    check.CHECK,
    Verb(
        name="ping",
        summary="Measure how long each server takes to answer.",
        run=ping,
        arguments=CONNECTION,
    ),
    Verb(
        name="ls",
        aliases=("list",),
        summary="List servers with their figures.",
        run=list_servers,
        arguments=CONNECTION,
    ),
    Verb(
        name="report",
        summary="Show connections, accounts, JetStream or health of every server.",
        run=report,
        arguments=(
            argument(
                "what", metavar="WHAT", choices=tuple(REPORTS), doc=f"`{'`, `'.join(REPORTS)}`."
            ),
            *CONNECTION,
        ),
    ),
    Verb(
        name="reload",
        summary="Have a server read its configuration again.",
        run=reload,
        arguments=(SERVER, *CONNECTION),
    ),
    Verb(
        name="kick",
        summary="Close a connection.",
        run=kick,
        arguments=(CID, SERVER, FORCE, *CONNECTION),
    ),
    Verb(
        name="ldm",
        summary="Ask a client to move to another server.",
        run=lame_duck,
        arguments=(CID, SERVER, *CONNECTION),
    ),
)
