"""
The page of compatibility: every verb, subject, option, directive and endpoint, with its state.

What the code has as a table is read from there, so the page cannot promise what is not there.
The rest is listed here, and a test looks for each row in the tests that its section names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from penstock.config.file.directives import (
    DIRECTIVES,
    FLAGS,
    IGNORED,
    IGNORED_FLAGS,
    JOINING,
    REFUSED_FLAGS,
    UNSUPPORTED,
)
from penstock.version import NATS_VERSION

YES = "yes"
IGNORED_STATE = "no effect, with a warning"
REFUSED_STATE = "refused"
ALONE = "answered as by one server without a cluster"

INTRODUCTION = f"""\
# Compatibility

What a client or an operator of a single nats-server can ask for, and what Penstock makes of it.
Clients are told version {NATS_VERSION}, by which they switch features on. This page is made by
`penstock reference compatibility`; tests hold every row of it.
"""

Rows = Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """Rows of one kind, and where they are proven."""

    title: str
    rows: Rows
    """What there is to ask for, and its state."""
    proofs: tuple[str, ...]
    """The tests that have each of the rows in them; a star stands for any name."""
    is_walked: bool = False
    """Whether the tests take the rows from the very table that the code has."""


CLIENT_VERBS = ("CONNECT", "PING", "PONG", "PUB", "HPUB", "SUB", "UNSUB")
SERVER_VERBS = ("INFO", "MSG", "HMSG", "+OK", "-ERR", "PING", "PONG")
CONNECT_OPTIONS = (
    *("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required", "protocol"),
    *("user", "pass", "auth_token", "nkey", "sig", "jwt", "name", "lang", "version"),
)
OTHER_CONNECT_OPTIONS = ("account", "new_account")
TRANSPORTS = {
    "nats": "plain TCP",
    "tls": "TLS after INFO or before it",
    "ws": "WebSocket",
    "wss": "WebSocket over TLS",
    "::1": "IPv6",
}
SYSTEM_REQUESTS = (
    *("$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ"),
    *("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
    *(
        f"$SYS.REQ.SERVER.<id>.{kind}"
        for kind in (
            *("IDZ", "STATSZ", "VARZ", "CONNZ", "SUBSZ", "JSZ", "HEALTHZ", "ACCOUNTZ", "LEAFZ"),
            *("ROUTEZ", "GATEWAYZ", "IPQUEUESZ", "RAFTZ", "EXPVARZ", "KICK", "LDM", "RELOAD"),
        )
    ),
    *(
        f"$SYS.REQ.ACCOUNT.<account>.{kind}"
        for kind in ("CONNZ", "SUBSZ", "INFO", "LEAFZ", "JSZ", "STATZ", "CONNS")
    ),
)
OF_OPERATORS = "with an operator"
CLAIMS_REQUESTS = (
    *(f"$SYS.REQ.CLAIMS.{order}" for order in ("UPDATE", "LIST", "DELETE", "PACK")),
    *(f"$SYS.REQ.ACCOUNT.<account>.CLAIMS.{order}" for order in ("UPDATE", "LOOKUP")),
)
PROFILES = {"$SYS.REQ.SERVER.<id>.PROFILEZ": "answered that there is no such profile"}
SIGNALS = {
    "SIGINT": "stop",
    "SIGTERM": "stop",
    "SIGHUP": "reload",
    "SIGUSR1": "reopen the log file",
    "SIGUSR2": "lame duck",
}
LEFT_OUT = {
    "routes, gateways, leaf nodes": (
        "one server has none; run a nats-server cluster. Streams of another server are mirrored "
        "and sourced over `jetstream.remotes`"
    ),
    "MQTT": "a nats-server of its own, with a bridge between",
    "streams with more than one replica": "answered with error 10074, as by one nats-server",
    "OCSP, certificate stores, encryption at rest": "files of certificates; an encrypted disk",
    "account resolvers by URL, and caches of other servers": "`resolver { type: full, dir: … }`",
    "proxies that vouch for clients (`proxies`, `proxy_required`)": "`proxy_protocol`, or TLS",
    "message tracing (`Nats-Trace-Dest`)": "the header is passed on",
}


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for section in sections():
        proofs = ", ".join(f"`{proof}`" for proof in section.proofs)
        table = [f"| `{name}` | {state} |" for name, state in section.rows.items()]
        head = [f"## {section.title}", "", f"Proven by {proofs}.", "", "| | |", "|---|---|"]
        parts.append("\n".join([*head, *table, ""]))
    parts.append("\n".join(["## Left out", "", *_left_out(), ""]))
    return "\n".join(parts)


def sections() -> Iterator[Section]:
    """Yield the sections of the page."""
    core = "tests/conformance/transcripts/*.txt"
    yield Section("From a client", dict.fromkeys(CLIENT_VERBS, YES), (core,))
    yield Section("From the server", dict.fromkeys(SERVER_VERBS, YES), (core,))
    yield Section(
        "Options of CONNECT",
        dict.fromkeys(CONNECT_OPTIONS, YES) | dict.fromkeys(OTHER_CONNECT_OPTIONS, REFUSED_STATE),
        (core, "tests/unit/core/*.py", "tests/unit/client/*.py"),
    )
    yield Section(
        "Transports",
        TRANSPORTS,
        ("tests/conformance/test_transports.py", "tests/conformance/test_tls.py"),
    )
    yield from _jetstream()
    yield from _monitoring()
    yield from _settings()
    yield Section("Signals", SIGNALS, ("tests/unit/cli/*.py", "tests/conformance/*.py"))


def _jetstream() -> Iterator[Section]:
    from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.config.stream import STREAM_SOURCE, StreamConfig

    also = ("tests/conformance/*/*.txt", "tests/conformance/*.py", "tests/unit/jetstream/*.py")
    calls = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS
    rows = {".".join(name): YES for name in calls} | {"CONSUMER.MSG.NEXT": YES, "DIRECT.GET": YES}
    rows |= {".".join(name): ALONE for name in clusterapi.CALLS}
    yield Section("JetStream API, after `$JS.API.`", rows, also)
    for title, config in (("a stream", StreamConfig), ("a consumer", ConsumerConfig)):
        options = dict.fromkeys((item.name for item in fields(config)), YES)
        yield Section(f"Options of {title}", options, also)
    origin = dict.fromkeys(STREAM_SOURCE, YES)
    origin |= {
        "external.api": "a remote, `$JS.<name>.API`, or what an import is called; else refused",
        "external.deliver": YES,
    }
    del origin["external"]
    yield Section("Options of a mirror or a source", origin, also)


def _monitoring() -> Iterator[Section]:
    from penstock.net.monitor.monitor import ALIASES, ENDPOINTS

    proofs = ("tests/conformance/*.py", "tests/unit/net/*.py", "tests/cli/*.py")
    rows = {path: title for path, (title, _) in ENDPOINTS.items()}
    rows |= {alias: rows[path] for alias, path in ALIASES.items()}
    yield Section("Monitoring over HTTP", rows, proofs)
    yield Section(
        "Requests to the system",
        dict.fromkeys(SYSTEM_REQUESTS, YES)
        | dict.fromkeys(CLAIMS_REQUESTS, OF_OPERATORS)
        | PROFILES,
        (*proofs, "tests/unit/core/*.py"),
    )


def _settings() -> Iterator[Section]:
    proofs = ("tests/unit/config/file/test_directives.py", "tests/conformance/test_config.py")
    directives = {directive.name: YES for directive in DIRECTIVES.values()}
    directives |= dict.fromkeys(IGNORED, IGNORED_STATE)
    directives |= {f"{block}.{key}": REFUSED_STATE for block, key in JOINING.items()}
    directives |= dict.fromkeys(UNSUPPORTED, REFUSED_STATE)
    yield Section("Directives", dict(sorted(directives.items())), proofs, is_walked=True)
    flags = {f"-{name}": YES for flag in FLAGS for name in flag.names}
    flags |= {f"-{name}": IGNORED_STATE for flag in IGNORED_FLAGS for name in flag.names}
    flags |= {f"-{name}": REFUSED_STATE for name in REFUSED_FLAGS}
    yield Section("Flags", dict(sorted(flags.items())), proofs[:1], is_walked=True)


def _left_out() -> list[str]:
    return [f"- {name}: {instead}." for name, instead in LEFT_OUT.items()]
