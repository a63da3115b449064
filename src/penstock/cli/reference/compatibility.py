"""
The compatibility page: every verb, subject, option, directive and endpoint, with its state.

Rows come from the code's own tables where there is one, so that the page cannot promise too
much. The other rows are listed here. Each row names the test that holds it (`proofs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from penstock.cli.reference.proofs import WALKS, proofs_of
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
from penstock.protocol.version import NATS_VERSION

YES = "yes"
IGNORED_STATE = "no effect, with a warning"
REFUSED_STATE = "refused"
ALONE = "answered as by a single server"

INTRODUCTION = f"""\
# Compatibility

What a client or an operator of a single nats-server can ask for, and what Penstock makes of it.
Clients are told version {NATS_VERSION}, by which they switch features on. This page is made by
`penstock reference compatibility`. Each row names the test that holds it, below `tests/`; most of
those tests hold the same conversation with nats-server. None of them may be skipped.
"""

Rows = Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """Rows of one kind."""

    title: str
    rows: Rows
    """A feature, and its state."""
    tests: Rows
    """A feature, and the test that holds its row."""


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
    "a key in the machine's TPM (`jetstream.tpm`)": "`jetstream.key`, from the environment",
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
    "JetStream without `max_mem` or `max_file`": (
        "nats-server takes three quarters of the memory and of the free disk as limits; ours has "
        "none, so set them where streams of others could fill the machine"
    ),
    "Encryption at rest": (
        "the files are not nats-server's: take a stream along with a backup. A wrong key ends the "
        "start; a store that is not encrypted is encrypted as a whole before the start goes on; "
        "`cipher` may change at any time"
    ),
    "Insecure settings": (
        "`password` without a `user`, with which nats-server lets everybody in, `tls {}` for all "
        "clients without a certificate, and the unlimited `max_payload: -1` are refused"
    ),
    "Messages that were purged while they wait for an ack": (
        "ours no longer counts them as soon as it knows; after a purge of some of its subjects "
        "nats-server counts them until their redelivery is due, or raises the consumer sequence of "
        "the ack floor above messages that still wait"
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
        head = [f"## {section.title}", "", "| | | Held by |", "|---|---|---|"]
        table = [
            f"| `{name}` | {state} | `{section.tests[name]}` |"
            for name, state in section.rows.items()
        ]
        parts.append("\n".join([*head, *table, ""]))
    parts.append("\n".join(["## Done differently", "", *_listed(DIFFERENT), ""]))
    parts.append("\n".join(["## Left out", "", *_listed(LEFT_OUT), ""]))
    return "\n".join(parts)


def sections() -> Iterator[Section]:
    """Yield the sections of the page."""
    yield _section("From a client", dict.fromkeys(CLIENT_VERBS, YES))
    yield _section("From the server", dict.fromkeys(SERVER_VERBS, YES))
    yield _section(
        "Options of CONNECT",
        dict.fromkeys(CONNECT_OPTIONS, YES) | dict.fromkeys(OTHER_CONNECT_OPTIONS, REFUSED_STATE),
    )
    yield _section("Headers of a traced message", TRACE_HEADERS)
    yield _section("Transports", TRANSPORTS)
    yield from _jetstream()
    yield from _monitoring()
    yield from _settings()
    yield _section("Signals", SIGNALS)


def _section(title: str, rows: Rows, tests: Rows | None = None) -> Section:
    """Return a section; `tests` are those of rows that `proofs.py` does not list."""
    return Section(title, rows, {**(tests or {}), **proofs_of(title)})


def _jetstream() -> Iterator[Section]:
    from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.config.stream import STREAM_SOURCE, StreamConfig

    calls = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS
    rows = {".".join(name): YES for name in calls} | {"CONSUMER.MSG.NEXT": YES, "DIRECT.GET": YES}
    rows |= {".".join(name): ALONE for name in clusterapi.CALLS}
    yield _section("JetStream API, after `$JS.API.`", rows)
    for title, config in (("a stream", StreamConfig), ("a consumer", ConsumerConfig)):
        options = dict.fromkeys((item.name for item in fields(config)), YES)
        yield _section(f"Options of {title}", options)
    origin = dict.fromkeys(STREAM_SOURCE, YES)
    origin |= {
        "external.api": "a remote, `$JS.<name>.API`, or the name of an import; otherwise refused",
        "external.deliver": YES,
    }
    del origin["external"]
    yield _section("Options of a mirror or a source", origin)


def _monitoring() -> Iterator[Section]:
    from penstock.net.monitor.monitor import ALIASES, ENDPOINTS

    rows = {path: title for path, (title, _) in ENDPOINTS.items()}
    rows |= {alias: rows[path] for alias, path in ALIASES.items()}
    yield _section("Monitoring over HTTP", rows)
    yield _section(
        "Requests to the system",
        dict.fromkeys(SYSTEM_REQUESTS, YES)
        | dict.fromkeys(CLAIMS_REQUESTS, OF_OPERATORS)
        | PROFILES,
    )


def _settings() -> Iterator[Section]:
    taken = dict.fromkeys((directive.name for directive in DIRECTIVES.values()), YES)
    ignored = dict.fromkeys(IGNORED, IGNORED_STATE)
    joining = {f"{block}.{key}": REFUSED_STATE for block, key in JOINING.items()}
    refused = dict.fromkeys(UNSUPPORTED, REFUSED_STATE)
    yield _section(
        "Directives",
        dict(sorted((taken | ignored | joining | refused).items())),
        _walked("test_a_directive_is_taken", taken)
        | _walked("test_what_has_no_effect_is_warned_of", ignored)
        | {
            f"{block}.{key}": f"{WALKS}test_naming_another_server_is_refused[{block}]"
            for block, key in JOINING.items()
        }
        | _walked("test_what_is_refused_says_what_to_do_instead", refused),
    )
    known = [name for flag in (*FLAGS, *COMMAND_FLAGS) for name in flag.names]
    warned = [name for flag in IGNORED_FLAGS for name in flag.names]
    states = {
        **dict.fromkeys(known, YES),
        **dict.fromkeys(warned, IGNORED_STATE),
        **dict.fromkeys(REFUSED_FLAGS, REFUSED_STATE),
    }
    tests = (
        _walked("test_a_flag_is_taken_with_one_dash_or_two", known)
        | _walked("test_a_flag_without_effect_is_warned_of", warned)
        | _walked("test_a_flag_that_is_refused_says_what_to_do_instead", REFUSED_FLAGS)
    )
    yield _section(
        "Flags",
        {f"-{name}": states[name] for name in sorted(states)},
        {f"-{name}": test for name, test in tests.items()},
    )


def _walked(test: str, names: Iterable[str]) -> dict[str, str]:
    """Return the test of each row of a table in the code, which a test walks."""
    return {name: f"{WALKS}{test}[{name}]" for name in names}


def _listed(rows: Rows) -> list[str]:
    return [f"- {name}: {instead}." for name, instead in rows.items()]
