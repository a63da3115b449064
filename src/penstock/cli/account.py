"""`penstock account`: who we are on a server, and what our account may use."""

from __future__ import annotations

from typing import Any

from penstock.cli.arguments import Verb
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.runner import run_command
from penstock.cli.values import show_count, show_size
from penstock.client.jetstream.api import read_object
from penstock.errors import JetStreamError, NoResponders, RequestTimeout
from penstock.protocol.tables import details

USER_INFO = "$SYS.REQ.USER.INFO"


def run(arguments: list[str]) -> int:
    """Run `penstock account` and return the exit code."""
    return run_command("account", VERBS, arguments)


async def info(context: Context) -> None:
    """Print the user, its account, and the use and limits of JetStream."""
    user, jetstream = await user_info(context), await _jetstream(context)
    data = user.get("data") or {}
    server = user.get("server") or {}
    rows = [
        (
            "server",
            f"{context.client.server}, {context.client.info['server_name']}",
        ),
        ("version", str(context.client.info["version"])),
        ("user", str(data.get("user", ""))),
        ("account", str(data.get("account_name") or data.get("account", ""))),
        ("max payload", show_size(context.client.info["max_payload"])),
    ]
    text = details(row for row in rows if row[1])
    if jetstream is not None:
        text += f"\n\nJetStream\n{details(_usage(jetstream))}"
    context.show(text, {"user": data, "server": server, "jetstream": jetstream})


async def user_info(context: Context) -> dict[str, Any]:
    """Return what the server knows of us; empty if it does not tell."""
    try:
        return read_object((await context.client.request(USER_INFO)).payload)
    except (NoResponders, RequestTimeout):
        return {}


async def _jetstream(context: Context) -> dict[str, Any] | None:
    try:
        return await context.js.account_info()
    except (JetStreamError, NoResponders):
        return None


def _usage(info: dict[str, Any]) -> list[tuple[str, str]]:
    limits = info["limits"]
    sizes = (("memory", "max_memory"), ("storage", "max_storage"))
    counts = (("streams", "max_streams"), ("consumers", "max_consumers"))
    return [
        *((name, _of(show_size(info[name]), limits[limit], show_size)) for name, limit in sizes),
        *((name, _of(show_count(info[name]), limits[limit], show_count)) for name, limit in counts),
    ]


def _of(used: str, limit: int, show: Any) -> str:
    return f"{used} of {show(limit) if limit > 0 else 'unlimited'}"


VERBS = (
    Verb(
        name="info",
        summary="Show the user, its account, and the use and limits of JetStream.",
        run=info,
        arguments=CONNECTION,
    ),
)
