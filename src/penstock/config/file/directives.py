"""
The directives of a configuration file, as tables.

Nearly all of them are fields of the dataclasses in `config`. The few that are not a single
field (a combined address, a single user, the JetStream switch) are listed here, and so are
the directives of nats-server that Penstock does not support: using one is an error or a
warning with a reason, and never silently ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from penstock.config.file.flags import Flag
from penstock.config.frozen import dataclass
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, Limits, ProcessConfig, ServerConfig
from penstock.config.transport import TlsConfig, WebSocketConfig

WEBSOCKET = "websocket."

SECTIONS: dict[tuple[type, str], str] = {
    (ServerConfig, ""): "Server",
    (Authorization, ""): "Authorization",
    (TlsConfig, ""): "TLS",
    (WebSocketConfig, ""): "WebSocket",
    (TlsConfig, WEBSOCKET): "WebSocket",
    (JetStreamConfig, ""): "JetStream",
    (Limits, ""): "Limits",
    (ProcessConfig, ""): "Log and files",
}
"""
The dataclasses whose fields are directives, under the headings of help and reference.

The second part of a key is the prefix of the enclosing block, if there is one.
"""

BLOCKS = (
    "authorization",
    "jetstream",
    "tls",
    "monitor",
    "websocket",
    "websocket.tls",
    "websocket.authorization",
)
"""Directives that are blocks. A directive inside is written `block.directive` here."""

BLOCK_ALIASES = {
    "ws": "websocket",
    "leaf": "leafnodes",
    "websocket.authentication": "websocket.authorization",
}


@dataclass(frozen=True, kw_only=True)
class Directive:
    """One directive: its name, its form, and its meaning."""

    name: str
    kind: str
    """The annotation of the field; `readers` has one reader for each."""
    doc: str
    section: str
    default: Any = None
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    field_name: str = ""
    is_size: bool = False


EXTRA = (
    Directive(
        name="listen",
        kind="address",
        doc="`host` and `port` together, as `host:port`.",
        section="Server",
    ),
    Directive(
        name="http",
        kind="address",
        doc="`http_host` and `http_port` together, as `host:port`.",
        section="Server",
    ),
    Directive(
        name="https",
        kind="address",
        doc="`http_host` and `https_port` together, as `host:port`.",
        section="Server",
    ),
    Directive(
        name="websocket.listen",
        kind="address",
        doc="`websocket.host` and `websocket.port` together, as `host:port`.",
        section="WebSocket",
    ),
    Directive(
        name="tls.enabled",
        kind="bool",
        doc="Offer TLS. A `tls` block or any TLS flag enables it.",
        section="TLS",
        default=False,
        flags=("tls",),
    ),
    Directive(
        name="authorization.user",
        kind="str | None",
        doc="The only user, if there are no `users`.",
        section="Authorization",
        aliases=("authorization.username",),
        flags=("user",),
    ),
    Directive(
        name="authorization.password",
        kind="str | None",
        doc="Password of the only user, plain or bcrypt.",
        section="Authorization",
        aliases=("authorization.pass",),
        flags=("pass",),
    ),
    Directive(
        name="jetstream.enabled",
        kind="bool",
        doc="Offer JetStream. A `jetstream` block or `jetstream: true` enables it.",
        section="JetStream",
        default=False,
        aliases=("jetstream.enable",),
        flags=("js", "jetstream"),
    ),
)

CLUSTER = "Penstock runs on one machine; use a nats-server cluster for more"
ALONE = "Penstock is a single server, and no other server can join it"
CERTIFICATES = (
    "name the certificate files with `cert_file` and `key_file`, and authorities with `ca_file`"
)
SYSTEM = (
    "the system account always exists, visible only to the users of `system_account`; "
    "remove the line"
)
ACCOUNTS = "list users under `accounts`, or account tokens under `resolver_preload`"
TUNING = "it tunes an internal part of nats-server that Penstock does not have"
LENIENT = "Penstock does not limit this"
OCSP = "Python's `ssl` cannot attach responses to a handshake; a proxy in front of it can"
TRACES = "trace lines show headers and payload, up to 256 bytes"
BASE_PATH = "monitoring is at `/`; a proxy in front of it can add a prefix"
STUCK = "a client that takes nothing for `write_deadline` is disconnected"
FLAGGED = "Penstock does what nats-server does without these flags"
STRICT = "unknown fields in requests are always refused, as by nats-server unless told otherwise"
LIMITED = "set limits for accounts, and `consumer_limits` for streams"
MQTT = "MQTT clients need a separate nats-server with a leaf node or a bridge"
PROXY = "let the proxy pass connections through unchanged"
PINGS = "`ping_interval` applies to WebSocket too"
SYSLOG = "use `log_file`, or let the service manager collect standard error"
TPM = "set `jetstream.key`, for instance from the environment: `key: $JETSTREAM_KEY`"

JOINING = {"cluster": "routes", "gateway": "gateways", "leafnodes": "remotes"}
"""
Blocks about other servers, and the directive in each that names one. Without it, the block
changes nothing.
"""

_REFUSED: dict[str, tuple[str, ...]] = {
    CERTIFICATES: tuple(
        prefix + name
        for prefix in ("", WEBSOCKET)
        for name in (
            *("tls.cert_store", "tls.cert_match"),
            *("tls.cert_match_by", "tls.cert_match_skip_invalid", "tls.ca_certs_match"),
            *("tls.ocsp_peer", "tls.verify_cert_and_check_known_urls"),
        )
    ),
    SYSTEM: ("no_system_account", "no_system", "no_sys_acc"),
    ACCOUNTS: ("resolver_tls", "resolver_pinned_accounts"),
    MQTT: ("mqtt",),
    PROXY: ("proxies", "authorization.proxy_required"),
    TPM: ("jetstream.tpm",),
}

_IGNORED: dict[str, tuple[str, ...]] = {
    ALONE: (
        *(*JOINING, "default_js_domain", "connect_error_reports", "reconnect_error_reports"),
        "jetstream.unique_tag",
    ),
    OCSP: ("ocsp", "ocsp_cache"),
    CERTIFICATES: ("tls.insecure", "websocket.tls.insecure"),
    PINGS: ("websocket.ping_interval",),
    SYSLOG: ("syslog", "remote_syslog"),
    LENIENT: ("max_sub_tokens", "max_subscription_tokens", "no_header_support"),
    TUNING: (
        *("disable_sublist_cache", "no_sublist_cache", "no_fast_producer_stall"),
        *("prof_port", "prof_block_rate"),
        *("jetstream.extension_hint", "jetstream.max_outstanding_catchup"),
        *("jetstream.max_buffered_size", "jetstream.max_buffered_msgs"),
        *("jetstream.request_queue_limit", "jetstream.info_queue_limit"),
        *("jetstream.meta_compact", "jetstream.meta_compact_size"),
        *("jetstream.meta_compact_sync", "jetstream.max_concurrent_io"),
    ),
    TRACES: ("trace_headers", "max_traced_msg_len"),
    BASE_PATH: ("http_base_path",),
    STUCK: ("write_timeout",),
    FLAGGED: ("feature_flags",),
    STRICT: ("jetstream.strict",),
    LIMITED: ("jetstream.limits",),
}

UNSUPPORTED: dict[str, str] = {name: why for why, names in _REFUSED.items() for name in names}
"""Directives of nats-server that Penstock refuses, and the alternatives."""

IGNORED: dict[str, str] = {name: why for why, names in _IGNORED.items() for name in names}
"""Directives of nats-server that Penstock ignores with a warning, and why that is safe."""

REFUSED_FLAGS: dict[str, str] = {
    "routes": CLUSTER,
    "help_tls": "see section TLS of the configuration page",
}
"""Flags of nats-server that Penstock refuses, and the alternatives."""

IGNORED_FLAGS: tuple[Flag, ...] = (
    Flag(names=("cluster", "cluster_listen"), kind=str, doc=ALONE),
    Flag(names=("cluster_name", "cluster_advertise"), kind=str, doc=ALONE),
    Flag(names=("connect_retries",), kind=int, doc=ALONE),
    Flag(names=("profile",), kind=int, doc=TUNING),
    Flag(names=("max_traced_msg_len",), kind=int, doc=TRACES),
    Flag(names=("s", "syslog"), kind=bool, doc=SYSLOG),
    Flag(names=("r", "remote_syslog"), kind=str, doc=SYSLOG),
)
"""Flags of nats-server that Penstock ignores with a warning, and why that is safe."""


def field_directives(config: type, prefix: str = "") -> Iterator[Directive]:
    """Yield a directive for each field of `config` that can be set from outside."""
    for item in fields(config):
        if name := item.metadata.get("directive"):
            yield Directive(
                name=prefix + name,
                kind=str(item.type),
                doc=item.metadata["doc"],
                section=SECTIONS[config, prefix],
                default=None if item.default is MISSING else item.default,
                aliases=tuple(prefix + alias for alias in item.metadata["aliases"]),
                flags=() if prefix else item.metadata["flags"],
                field_name=item.name,
                is_size=item.metadata["size"],
            )


DIRECTIVES: dict[str, Directive] = {
    directive.name: directive
    for directive in (
        *(d for config, prefix in SECTIONS for d in field_directives(config, prefix)),
        *EXTRA,
    )
}

ALIASES: dict[str, str] = {
    alias: directive.name for directive in DIRECTIVES.values() for alias in directive.aliases
}

_FLAG_KINDS: dict[str, type[bool] | type[int]] = {"bool": bool, "int": int, "int | None": int}

DEBUG_AND_TRACE = Flag(
    names=("DV", "DVV"), kind=bool, doc="`-D` and `-V`.", directives=("debug", "trace")
)

FLAGS: tuple[Flag, ...] = (
    *(
        Flag(
            names=directive.flags,
            kind=_FLAG_KINDS.get(directive.kind, str),
            doc=directive.doc,
            directives=(directive.name,),
        )
        for directive in DIRECTIVES.values()
        if directive.flags
    ),
    DEBUG_AND_TRACE,
)
"""Every flag that sets a directive."""
