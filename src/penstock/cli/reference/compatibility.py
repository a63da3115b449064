"""
The compatibility page: every verb, subject, option, directive and endpoint, with its state.

Rows come from the code's own tables where there is one, so that the page cannot promise too
much. The other rows are listed here, and a test looks for each one in the tests that its
section names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from penstock.cli.serve.serve import COMMAND_FLAGS
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
ALONE = "answered as by a single server"

INTRODUCTION = f"""\
# Compatibility

What a client or an operator of a single nats-server can ask for, and what Penstock makes of it.
Clients are told version {NATS_VERSION}, by which they switch features on. This page is made by
`penstock reference compatibility`; tests hold every row of it.
"""

Rows = Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """Rows of one kind, and the tests that prove them."""

    title: str
    rows: Rows
    """A feature, and its state."""
    proofs: tuple[str, ...]
    """The tests that contain each of the rows; a star matches any name."""
    is_walked: bool = False
    """Whether the tests read the rows from the table in the code."""


CLIENT_VERBS = ("CONNECT", "PING", "PONG", "PUB", "HPUB", "SUB", "UNSUB")
SERVER_VERBS = ("INFO", "MSG", "HMSG", "+OK", "-ERR", "PING", "PONG")
CONNECT_OPTIONS = (
    *("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required", "protocol"),
    *("user", "pass", "auth_token", "nkey", "sig", "jwt", "name", "lang", "version"),
)
TRACE_HEADERS = {
    **dict.fromkeys(("Nats-Trace-Dest", "Nats-Trace-Only", "traceparent", "Accept-Encoding"), YES),
    "Nats-Trace-Hop": "set between servers; passed on",
    "Nats-Trace-Origin-Account": "set by older servers; not traced",
}
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
PROFILES = {"$SYS.REQ.SERVER.<id>.PROFILEZ": "answered with an error: no such profile"}
SIGNALS = {
    "SIGINT": "stop",
    "SIGTERM": "stop",
    "SIGHUP": "reload",
    "SIGUSR1": "reopen the log file",
    "SIGUSR2": "lame duck mode",
}
LEFT_OUT = {
    "routes, gateways, leaf nodes": (
        "a single server has none; use a nats-server cluster. Streams of another server are "
        "mirrored and sourced over `jetstream.remotes`"
    ),
    "MQTT": "a separate nats-server with a bridge",
    "streams with more than one replica": "refused with error 10074, as by a single nats-server",
    "OCSP (`ocsp`, `ocsp_cache`, `tls.ocsp_peer`)": (
        "Python's `ssl` can neither attach a response to a handshake (`status_request`) nor ask a "
        "client for one; a proxy in front of the server can, with `proxy_protocol`"
    ),
    "certificate stores": "certificate files",
    "encryption at rest (`jetstream.key`, `cipher`)": "an encrypted disk",
    "separate TLS settings for a URL resolver (`resolver_tls`)": (
        "`https://` with a certificate that the machine trusts"
    ),
    "proxies that vouch for clients (`proxies`, `proxy_required`)": "`proxy_protocol`, or TLS",
}
DIFFERENT = {
    "Lame duck mode": (
        "nats-server closes JetStream at once without telling anybody; ours serves it for "
        "`lame_duck_grace_period`, so that clients can ack their messages, and then answers "
        "waiting pull requests with `409 Server Shutdown`"
    ),
    "Checking a file with `-t`": (
        "ours reports errors that nats-server reports only at its start, such as `https` without a "
        "certificate, an unknown `system_account` or a port above 65535"
    ),
    "Insecure settings": (
        "`password` without a `user`, with which nats-server lets everybody in, `tls {}` for all "
        "clients without a certificate, and the unlimited `max_payload: -1` are refused"
    ),
    "A payload that is too large": (
        "both answer `-ERR 'Maximum Payload Violation'`; nats-server then resets the connection, "
        "so that a client may lose the error before reading it; ours closes it"
    ),
    "Keys and ciphers": (
        "OpenSSL handles TLS: it refuses RSA keys of 1024 bits, and has no RC4 and, as a rule, no "
        "3DES, even with `allow_insecure_cipher_suites`"
    ),
}
"""Deliberate differences, and the reason for each."""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for section in sections():
        proofs = ", ".join(f"`{proof}`" for proof in section.proofs)
        table = [f"| `{name}` | {state} |" for name, state in section.rows.items()]
        head = [f"## {section.title}", "", f"Proven by {proofs}.", "", "| | |", "|---|---|"]
        parts.append("\n".join([*head, *table, ""]))
    parts.append("\n".join(["## Done differently", "", *_listed(DIFFERENT), ""]))
    parts.append("\n".join(["## Left out", "", *_listed(LEFT_OUT), ""]))
    return "\n".join(parts)


def sections() -> Iterator[Section]:
    """Yield the sections of the page."""
    core = "tests/conformance/transcripts/*.txt"
    yield Section("From a client", dict.fromkeys(CLIENT_VERBS, YES), (core,))
    yield Section("From the server", dict.fromkeys(SERVER_VERBS, YES), (core,))
    yield Section(
        "Options of CONNECT",
        dict.fromkeys(CONNECT_OPTIONS, YES) | dict.fromkeys(OTHER_CONNECT_OPTIONS, REFUSED_STATE),
        (core, "tests/unit/core/**/*.py", "tests/unit/client/**/*.py"),
    )
    yield Section(
        "Headers of a traced message",
        TRACE_HEADERS,
        ("tests/conformance/test_message_tracing.py",),
    )
    yield Section(
        "Transports",
        TRANSPORTS,
        ("tests/conformance/test_transports.py", "tests/conformance/test_tls.py"),
    )
    yield from _jetstream()
    yield from _monitoring()
    yield from _settings()
    yield Section("Signals", SIGNALS, ("tests/unit/cli/**/*.py", "tests/conformance/*.py"))


def _jetstream() -> Iterator[Section]:
    from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.config.stream import STREAM_SOURCE, StreamConfig

    also = ("tests/conformance/*/*.txt", "tests/conformance/*.py", "tests/unit/jetstream/**/*.py")
    calls = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS
    rows = {".".join(name): YES for name in calls} | {"CONSUMER.MSG.NEXT": YES, "DIRECT.GET": YES}
    rows |= {".".join(name): ALONE for name in clusterapi.CALLS}
    yield Section("JetStream API, after `$JS.API.`", rows, also)
    for title, config in (("a stream", StreamConfig), ("a consumer", ConsumerConfig)):
        options = dict.fromkeys((item.name for item in fields(config)), YES)
        yield Section(f"Options of {title}", options, also)
    origin = dict.fromkeys(STREAM_SOURCE, YES)
    origin |= {
        "external.api": "a remote, `$JS.<name>.API`, or the name of an import; otherwise refused",
        "external.deliver": YES,
    }
    del origin["external"]
    yield Section("Options of a mirror or a source", origin, also)


def _monitoring() -> Iterator[Section]:
    from penstock.net.monitor.monitor import ALIASES, ENDPOINTS

    proofs = ("tests/conformance/*.py", "tests/unit/net/**/*.py", "tests/cli/*.py")
    rows = {path: title for path, (title, _) in ENDPOINTS.items()}
    rows |= {alias: rows[path] for alias, path in ALIASES.items()}
    yield Section("Monitoring over HTTP", rows, proofs)
    yield Section(
        "Requests to the system",
        dict.fromkeys(SYSTEM_REQUESTS, YES)
        | dict.fromkeys(CLAIMS_REQUESTS, OF_OPERATORS)
        | PROFILES,
        (*proofs, "tests/unit/core/**/*.py"),
    )


def _settings() -> Iterator[Section]:
    proofs = ("tests/unit/config/file/test_directives.py", "tests/conformance/test_config.py")
    directives = {directive.name: YES for directive in DIRECTIVES.values()}
    directives |= dict.fromkeys(IGNORED, IGNORED_STATE)
    directives |= {f"{block}.{key}": REFUSED_STATE for block, key in JOINING.items()}
    directives |= dict.fromkeys(UNSUPPORTED, REFUSED_STATE)
    yield Section("Directives", dict(sorted(directives.items())), proofs, is_walked=True)
    flags = {f"-{name}": YES for flag in (*FLAGS, *COMMAND_FLAGS) for name in flag.names}
    flags |= {f"-{name}": IGNORED_STATE for flag in IGNORED_FLAGS for name in flag.names}
    flags |= {f"-{name}": REFUSED_STATE for name in REFUSED_FLAGS}
    yield Section("Flags", dict(sorted(flags.items())), proofs[:1], is_walked=True)


def _listed(rows: Rows) -> list[str]:
    return [f"- {name}: {instead}." for name, instead in rows.items()]
