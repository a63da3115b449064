"""What a server reads before it serves: only what it was told to have."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.servers import HOST

IMPORTED = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)")
NET = {
    *("checks", "clock", "collector", "connection", "poller", "reactor", "server"),
    *("listeners", "listeners.addresses", "listeners.acceptor", "listeners.listener"),
    *("monitor", "monitor.query", "monitor.usage"),
    *("system", "system.sysrequests"),
}
"""The part of `penstock.net` that every server has."""
SETTINGS = {
    *("accounts", "frozen", "jetstream", "kinds", "remotes", "server", "setting"),
    *("sharing", "transport"),
    *("file", "file.directives", "file.flags", "file.loading", "file.nodes", "file.readers"),
}
GROUND = {
    *("errors", "config", "hot", "keys", "protocol", "protocol.version"),
    *("hot._speedups", "hot.fanout", "hot.outbox", "hot.wire"),
    *("keys.nkeys", "keys.xkeys"),
    *(
        "protocol.addresses",
        "protocol.headers",
        "protocol.redaction",
        "protocol.subjects",
        "protocol.times",
    ),
    *("protocol.suggestions", "protocol.transforms", "protocol.units", "protocol.wellknown"),
}
CLI = {
    "cli",
    "cli.commands",
    "cli.main",
    "cli.serve",
    "cli.serve.log",
    "cli.serve.process",
    "cli.serve.serve",
}
CORE = {
    *("account", "broker", "directory", "host", "publishing", "reload", "runs", "session"),
    *("identity", "identity.auth", "identity.authenticators", "identity.certificates"),
    *("identity.connect", "identity.permissions", "identity.tls"),
    *("reports", "reports.clientinfo", "reports.messagetrace", "reports.record"),
    *("reports.system", "reports.trace", "routing", "routing.route", "routing.trie"),
    *("sharing", "sharing.latency", "sharing.mappings", "sharing.services"),
    "sharing.streamimports",
}
NOT_NEEDED = {
    *("argparse", "cramjam", "cryptography", "ctypes", "datetime", "decimal", "email", "gzip"),
    *("hashlib", "hmac", "html", "http", "importlib.resources", "ipaddress", "pathlib"),
    *("platform", "secrets", "tempfile", "urllib", "zoneinfo"),
}
"""Of the standard library and of packages: what asyncio does not read either."""
EMBEDDED = """
import asyncio, sys, penstock
async def serve():
    before = set(sys.modules)
    server = penstock.Server(port=-1)
    await server.start()
    print(*set(sys.modules) - before)
    await server.stop()
asyncio.run(serve())
"""


def imported(*flags: str) -> set[str]:
    """Return the modules that a server has imported when it is ready."""
    command = [sys.executable, "-X", "importtime", "-m", "penstock", "serve", "-a", HOST]
    with subprocess.Popen(
        [*command, "-p", "-1", *flags], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        found = set()
        for line in process.stderr:
            if "Server is ready" in line:
                break
            if match := IMPORTED.match(line):
                found.add(match[1])
        process.kill()
    return found


def ours(modules: set[str]) -> set[str]:
    return {name.removeprefix("penstock.") for name in modules if name.startswith("penstock.")}


def test_a_plain_server_reads_nothing_that_it_does_not_have() -> None:
    modules = imported()

    expected = {
        *GROUND,
        *CLI,
        *("core", "net"),
        *(f"config.{name}" for name in SETTINGS),
        *(f"core.{name}" for name in CORE),
        *(f"net.{name}" for name in NET),
    }
    assert ours(modules) - {"__main__"} <= expected
    assert modules & NOT_NEEDED == set()


def test_a_server_in_a_program_reads_no_more_than_that() -> None:
    command = [sys.executable, "-c", EMBEDDED]
    modules = set(subprocess.run(command, capture_output=True, text=True).stdout.split())

    found = {name for name in ours(modules) if not name.startswith(("config.", "core.", "net."))}
    assert "penstock.net.server" in modules
    assert found <= {*GROUND, "core", "net"}
    assert modules & NOT_NEEDED == set()
    assert ours(modules).isdisjoint({"jetstream", "net.listeners.tls", "config.file"})


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        (("-js", "-sd", "{store}"), {"net.committer", "jetstream.engine"}),
        (("-m", "-1"), {"net.monitor.monitor", "net.monitor.http"}),
    ],
    ids=["jetstream", "monitoring"],
)
def test_what_is_switched_on_is_read(
    flags: tuple[str, ...], more: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = str(tmp_path_factory.mktemp("store"))

    assert more <= ours(imported(*(flag.format(store=store) for flag in flags)))
