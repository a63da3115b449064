"""What a server reads before it serves: only what it was told to have."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.servers import HOST

IMPORTED = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)")
NET = {
    *("allocator", "checks", "clock", "collector", "connection", "poller", "reactor", "server"),
    *("listeners", "listeners.addresses", "listeners.acceptor", "listeners.listener"),
    *("monitor", "monitor.query", "monitor.usage"),
    *("system", "system.claimsrequests", "system.sysrequests"),
}
"""The part of `penstock.net` that every server has."""
SETTINGS = {
    *("accounts", "accounttokens", "frozen", "jetstream", "kinds", "remotes", "server", "setting"),
    *("sharing", "transport"),
    *("file", "file.accountreaders", "file.directives", "file.flags", "file.ignoredreaders"),
    *("file.language", "file.loading", "file.readers", "file.remotereaders"),
}
GROUND = {
    *("errors", "config", "hot", "keys", "protocol", "protocol.version"),
    *("hot._speedups", "hot.fanout", "hot.outbox", "hot.wire"),
    *("keys.nkeys", "keys.tokens", "keys.xkeys"),
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
NOT_NEEDED = {
    *("argparse", "cramjam", "cryptography", "datetime", "email", "gzip", "html", "http"),
    *("importlib.resources", "platform", "secrets", "tempfile", "zoneinfo"),
}
"""Of the standard library and of packages: each takes as long as all of `penstock.net`."""


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

    parts = {name for name in ours(modules) if not name.startswith("core")}
    assert parts - {"__main__"} <= {
        *GROUND,
        *(f"config.{name}" for name in SETTINGS),
        *CLI,
        "net",
        *(f"net.{name}" for name in NET),
    }
    assert modules & NOT_NEEDED == set()


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
