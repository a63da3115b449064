"""
Readers of `accounts` in a configuration file, with exports and imports.

`accounts { SALES { users: [...], exports: [{service: "orders.>"}] } }`: names, then the
contents of each account. Whether an import has an export is checked once all are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.config.accounts import (
    GLOBAL,
    Account,
    AccountLimits,
    AuthCallout,
    Destination,
    Export,
    Import,
    JetStreamLimits,
    Latency,
    MessageTracing,
    Resolver,
    SubjectMapping,
    check_name,
)
from penstock.config.file.nodes import Node
from penstock.config.file.readers import (
    block_of,
    entries_of,
    fail,
    read_boolean,
    read_duration,
    read_jetstream_switch,
    read_number,
    read_permissions,
    read_text,
    read_texts,
    read_users,
)
from penstock.config.sharing import check_import
from penstock.errors import ConfigError
from penstock.protocol import transforms
from penstock.protocol.subjects import is_valid

ACCOUNT_KEYS = {
    **{key: key for key in ("users", "default_permissions", "limits", "jetstream", "exports")},
    "imports": "imports",
    "mappings": "mappings",
    "maps": "mappings",
    **dict.fromkeys(("msg_trace", "trace_dest"), "msg_trace"),
    "nkey": "nkey",
}
LIMIT_KEYS = {
    **dict.fromkeys(("max_connections", "max_conn"), "max_connections"),
    **dict.fromkeys(("max_subscriptions", "max_subs"), "max_subscriptions"),
    **dict.fromkeys(("max_payload", "max_pay"), "max_payload"),
    **dict.fromkeys(("max_leafnodes", "max_leafs"), "leafnodes"),
}
JETSTREAM_KEYS = {
    **dict.fromkeys(("max_memory", "max_mem", "mem", "memory"), "max_memory"),
    **dict.fromkeys(("max_store", "max_file", "max_disk", "store", "disk"), "max_store"),
    **dict.fromkeys(("max_streams", "streams"), "max_streams"),
    **dict.fromkeys(("max_consumers", "consumers"), "max_consumers"),
    **dict.fromkeys(("max_bytes_required", "max_stream_bytes", "max_bytes"), "max_bytes_required"),
    **dict.fromkeys(("mem_max_stream_bytes", "memory_max_stream_bytes"), "memory_max_stream_bytes"),
    **dict.fromkeys(("disk_max_stream_bytes", "store_max_stream_bytes"), "store_max_stream_bytes"),
    "max_ack_pending": "max_ack_pending",
    "cluster_traffic": "cluster_traffic",
}
EXPORT_KEYS = {
    **{key: key for key in ("stream", "service", "accounts", "account_token_position")},
    **dict.fromkeys(("response", "response_type"), "response"),
    **dict.fromkeys(
        ("threshold", "response_threshold", "response_max_time", "response_time"), "threshold"
    ),
    "allow_trace": "allow_trace",
    "latency": "latency",
}
LATENCY_KEYS = {"subject": "subject", "sampling": "sampling"}
TRACE_KEYS = {"dest": "dest", "sampling": "sampling"}
IMPORT_KEYS = {key: key for key in ("stream", "service", "to", "prefix", "share", "allow_trace")}
SOURCE_KEYS = {"account": "account", "subject": "subject"}
DESTINATION_KEYS = {
    **dict.fromkeys(("dest", "destination"), "destination"),
    "weight": "weight",
}
DESTINATION_KEYS_UNSUPPORTED = {"cluster": "Penstock has no clusters; remove it"}
RESOLVER_KEYS = {
    **{key: key for key in ("type", "allow_delete", "hard_delete", "limit", "interval", "timeout")},
    "dir": "directory",
    "ttl": "ttl_s",
}
RESOLVER_KEYS_OF_CLUSTERS = ("interval", "timeout")
RESOLVER_URL = re.compile(r'URL\(\s*"?([^\s"]*?)"?\s*\)\s*', re.IGNORECASE)
OF_ONE_KIND = {"FULL": ("ttl_s",), "CACHE": ("allow_delete", "hard_delete", "interval")}
"""Options that a type of resolver does not accept."""
CACHE_LIMIT = 1000
RESOLVER_READERS: dict[str, Callable[[Node, str], Any]] = {
    "directory": read_text,
    "limit": read_number,
    "ttl_s": read_duration,
}
CALLOUT_KEYS = {
    **{key: key for key in ("issuer", "account", "auth_users", "xkey", "allowed_accounts")},
    "acc": "account",
    "users": "auth_users",
    "key": "xkey",
}
CALLOUT_LISTS = ("auth_users", "allowed_accounts")
RESPONSES = {
    **dict.fromkeys(("single", "singleton"), "singleton"),
    "stream": "stream",
    "chunk": "chunked",
    "chunked": "chunked",
}
SHARED = ("stream", "service")
WEIGHT_MAX = 100


def read_accounts(node: Node, name: str) -> tuple[Account, ...]:
    """Return the accounts of a block, or of a list of names."""
    if isinstance(node.value, list):
        return tuple(Account(name=_name(item, read_text(item, name))) for item in node.value)
    readers = [
        _AccountReader(key, item) for key, item in block_of(node, name).items() if not item.used
    ]
    accounts = {reader.account.name: reader.account for reader in readers}
    for reader in readers:
        reader.check_shared(accounts)
    return tuple(accounts.values())


def _name(node: Node, name: str) -> str:
    """Return the name of an account; it must be valid for a directory."""
    try:
        check_name(name)
    except ConfigError as error:
        fail(node, str(error))
    return name


def read_mappings(node: Node, name: str) -> tuple[SubjectMapping, ...]:
    """Return the mappings of subjects: each to one destination, or to several by weight."""
    return tuple(_mapping(key, item) for key, item in block_of(node, name).items())


class _AccountReader:
    """One account, and the places of its exports and imports, for errors found later."""

    def __init__(self, name: str, node: Node) -> None:
        if name == GLOBAL:
            fail(node, f'"{GLOBAL}" is the account of users without one; choose another name')
        _name(node, name)
        self._places: list[tuple[Import | Export, Node]] = []
        entries = entries_of(node, name, ACCOUNT_KEYS, {})
        # The public key of an account has no meaning without signed tokens.
        entries.pop("nkey", None)
        readers: Mapping[str, Callable[[Node, str], Any]] = {
            "users": read_users,
            "default_permissions": read_permissions,
            "limits": _limits,
            "jetstream": _jetstream,
            "mappings": read_mappings,
            "msg_trace": _msg_trace,
            "exports": self._exports,
            "imports": self._imports,
        }
        self.account = Account(
            name=name, **{key: readers[key](item, key) for key, item in entries.items()}
        )

    def check_shared(self, accounts: Mapping[str, Account]) -> None:
        """Check that every import has an export, and that every export can be imported."""
        for item, node in self._places:
            if isinstance(item, Import):
                try:
                    check_import(self.account.name, item, accounts)
                except ConfigError as error:
                    fail(node, str(error))
                continue
            for name in item.accounts or ():
                if name not in accounts:
                    fail(node, f'the export of "{item.subject}" names an unknown account "{name}"')

    def _exports(self, node: Node, name: str) -> tuple[Export, ...]:
        return tuple(self._placed(_export(item), item) for item in _list_of(node, name))

    def _imports(self, node: Node, name: str) -> tuple[Import, ...]:
        return tuple(self._placed(_import(item), item) for item in _list_of(node, name))

    def _placed(self, item: Any, node: Node) -> Any:
        self._places.append((item, node))
        return item


def _list_of(node: Node, name: str) -> list[Node]:
    if not isinstance(node.value, list):
        fail(node, f"`{name}` expects a list")
    return node.value


def _subject(node: Node, name: str) -> str:
    subject = read_text(node, name)
    if not is_valid(subject.encode()):
        fail(node, f'`{name}` has an invalid subject "{subject}"')
    return subject


def _limits(node: Node, name: str) -> AccountLimits:
    entries = entries_of(node, name, LIMIT_KEYS, {})
    # There are no leaf nodes, so a limit on them always holds.
    entries.pop("leafnodes", None)
    return AccountLimits(**{key: read_number(item, key) for key, item in entries.items()})


def _jetstream(node: Node, name: str) -> JetStreamLimits | None:
    """Return the limits of JetStream: a switch, or a block."""
    if not read_jetstream_switch(node, name):
        return None
    if not isinstance(node.value, dict):
        return JetStreamLimits()
    entries = entries_of(node, name, JETSTREAM_KEYS, {})
    entries.pop("cluster_traffic", None)
    required = entries.pop("max_bytes_required", None)
    values: dict[str, Any] = {key: read_number(item, key) for key, item in entries.items()}
    return JetStreamLimits(
        max_bytes_required=required is not None and read_boolean(required, "max_bytes_required"),
        **values,
    )


def _kind(node: Node, entries: Mapping[str, Node]) -> str:
    kinds = [kind for kind in SHARED if kind in entries]
    if len(kinds) != 1:
        fail(node, "each export and import is either a `stream` or a `service`")
    return kinds[0]


def _export(node: Node) -> Export:
    entries = entries_of(node, "exports", EXPORT_KEYS, {})
    kind = _kind(node, entries)
    values: dict[str, Any] = {"kind": kind, "subject": _subject(entries[kind], kind)}
    for key in ("response", "threshold", "latency", "allow_trace"):
        if key in entries and kind == "stream":
            fail(entries[key], f"`{key}` belongs to a `service`: a stream has no replies")
    if "allow_trace" in entries:
        values["allow_trace"] = read_boolean(entries["allow_trace"], "allow_trace")
    if "response" in entries:
        values["response"] = _response(entries["response"])
    if "threshold" in entries:
        values["response_s_max"] = read_duration(entries["threshold"], "threshold")
    if "latency" in entries:
        if values.get("response", "singleton") != "singleton":
            fail(entries["latency"], "`latency` needs a service with a single reply")
        values["latency"] = _latency(entries["latency"])
    if "accounts" in entries:
        values["accounts"] = read_texts(entries["accounts"], "accounts")
    if "account_token_position" in entries:
        place = entries["account_token_position"]
        values["account_token"] = read_number(place, "account_token_position")
        tokens = values["subject"].split(".")
        position = values["account_token"]
        if not 0 < position <= len(tokens) or tokens[position - 1] != "*":
            fail(place, "`account_token_position` must be the position of a `*` in the subject")
    return Export(**values)


def _latency(node: Node) -> Latency:
    """Return how latency is measured: a subject, or a block with a percentage."""
    if not isinstance(node.value, dict):
        return Latency(subject=_subject(node, "latency"))
    entries = entries_of(node, "latency", LATENCY_KEYS, {})
    if "subject" not in entries:
        fail(node, "`latency` needs a `subject`")
    values: dict[str, Any] = {"subject": _subject(entries["subject"], "subject")}
    if "sampling" in entries:
        values["sampling"] = _sampling(entries["sampling"])
    try:
        return Latency(**values)
    except ConfigError as error:
        fail(node, str(error))


def _sampling(node: Node) -> int:
    if read_text(node, "sampling").strip().lower() == "headers":
        return 0
    return _percentage(node, "sampling", " or `headers`,")


def _percentage(node: Node, name: str, more: str = "") -> int:
    number = read_text(node, name).strip().removesuffix("%")
    if not number.isdecimal() or number == "0":
        fail(node, f'`{name}` is a percentage from 1 to 100,{more} not "{node.text}"')
    return int(number)


def _msg_trace(node: Node, name: str) -> MessageTracing:
    """Return where messages are traced to: a subject, or a block with a percentage."""
    block = isinstance(node.value, dict)
    entries = entries_of(node, name, TRACE_KEYS, {}) if block else {"dest": node}
    if "dest" not in entries:
        fail(node, f"`{name}` needs a `dest`")
    values: dict[str, Any] = {"dest": read_text(entries["dest"], "dest")}
    if "sampling" in entries:
        values["sampling"] = _percentage(entries["sampling"], "sampling")
    try:
        return MessageTracing(**values)
    except ConfigError as error:
        fail(node, str(error))


def _response(node: Node) -> str:
    text = read_text(node, "response").lower()
    if text not in RESPONSES:
        fail(node, f'`response` is "singleton", "stream" or "chunked", not "{text}"')
    return RESPONSES[text]


def _import(node: Node) -> Import:
    entries = entries_of(node, "imports", IMPORT_KEYS, {})
    kind = _kind(node, entries)
    source = entries_of(entries[kind], kind, SOURCE_KEYS, {})
    for key in SOURCE_KEYS:
        if key not in source:
            fail(entries[kind], f"the `{kind}` of an import needs an `account` and a `subject`")
    subject = _subject(source["subject"], "subject")
    values: dict[str, Any] = {
        "kind": kind,
        "account": read_text(source["account"], "account"),
        "subject": subject,
    }
    if "prefix" in entries:
        if kind == "service" or "to" in entries:
            fail(entries["prefix"], "`prefix` needs a stream without `to`")
        values["to"] = f"{read_text(entries['prefix'], 'prefix').removesuffix('.')}.{subject}"
    if "to" in entries:
        values["to"] = read_text(entries["to"], "to")
    if "share" in entries:
        values["share"] = read_boolean(entries["share"], "share")
    if "allow_trace" in entries:
        if kind == "service":
            fail(entries["allow_trace"], "`allow_trace` of a service belongs to its export")
        values["allow_trace"] = read_boolean(entries["allow_trace"], "allow_trace")
    return Import(**values)


def _mapping(source: str, node: Node) -> SubjectMapping:
    if not is_valid(source.encode()):
        fail(node, f'`mappings` has an invalid subject "{source}"')
    nodes = node.value if isinstance(node.value, list) else [node]
    destinations = tuple(_destination(item) for item in nodes)
    if sum(each.weight for each in destinations) > WEIGHT_MAX:
        fail(node, f'the weights of the mapping of "{source}" exceed 100 %')
    for each in destinations:
        try:
            transforms.check(source, each.subject)
        except transforms.InvalidTransform as error:
            fail(node, f'"{source}" cannot be mapped to "{each.subject}": {error}')
    return SubjectMapping(source=source, destinations=destinations)


def _destination(node: Node) -> Destination:
    if not isinstance(node.value, dict):
        return Destination(subject=read_text(node, "destination"))
    entries = entries_of(node, "mappings", DESTINATION_KEYS, DESTINATION_KEYS_UNSUPPORTED)
    if "destination" not in entries:
        fail(node, "each destination of a mapping needs a `destination`")
    weight = 100
    if "weight" in entries:
        weight = _weight(entries["weight"])
    return Destination(subject=read_text(entries["destination"], "destination"), weight=weight)


def _weight(node: Node) -> int:
    text = read_text(node, "weight").removesuffix("%")
    if not text.isdecimal() or int(text) > WEIGHT_MAX:
        fail(node, f'`weight` is a percentage from 0 to 100, not "{node.text}"')
    return int(text)


def read_auth_callout(node: Node, name: str) -> AuthCallout:
    """Return the service that authenticates users."""
    entries = entries_of(node, name, CALLOUT_KEYS, {})
    values: dict[str, Any] = {
        key: read_texts(item, key) if key in CALLOUT_LISTS else read_text(item, key)
        for key, item in entries.items()
    }
    try:
        return AuthCallout(**({"issuer": "", "auth_users": ()} | values))
    except ConfigError as error:
        fail(node, str(error))


def read_operators(node: Node, name: str) -> tuple[str, ...]:
    """Return operator tokens, given directly or as files."""
    return tuple(_token(node, text, name) for text in read_texts(node, name))


def _token(node: Node, text: str, name: str) -> str:
    if text.startswith("eyJ"):
        return text
    try:
        lines = Path(text).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(node, f"`{name}` names a file that cannot be read: {error}")
    found = [line.strip() for line in lines if line.strip().startswith("eyJ")]
    if not found:
        fail(node, f"`{name}` names a file without a token: {text}")
    return found[0]


def read_resolver(node: Node, name: str) -> Resolver:
    """Return where account tokens are: `MEMORY`, `URL(…)`, or a block with a directory."""
    if isinstance(node.value, str) and _is_memory(node.value):
        return Resolver()
    if isinstance(node.value, str) and (found := RESOLVER_URL.fullmatch(node.value)):
        return _resolver(node, {"url": found[1]})
    if not isinstance(node.value, dict):
        fail(node, f"`{name}` can be MEMORY, URL(…), or {{ type: full, dir: 'accounts' }}")
    entries = entries_of(node, name, RESOLVER_KEYS, {})
    kind = read_text(entries.pop("type", node), "type").upper()
    if _is_memory(kind):
        return Resolver()
    if kind not in OF_ONE_KIND:
        fail(node, f"the `type` of a `{name}` can be `full`, `cache` or `memory`")
    for key in OF_ONE_KIND[kind]:
        if key in entries:
            said = key.removesuffix("_s")
            fail(entries[key], f"a `{name}` of type `{kind.lower()}` cannot have `{said}`")
    # There is no other server to compare with, now and then or in time.
    entries = {key: item for key, item in entries.items() if key not in RESOLVER_KEYS_OF_CLUSTERS}
    if "directory" not in entries:
        fail(node, f"a `{name}` of type `{kind.lower()}` needs a `dir`")
    values: dict[str, Any] = {
        key: RESOLVER_READERS.get(key, read_boolean)(item, key) for key, item in entries.items()
    }
    if kind == "CACHE":
        values |= {"is_cache": True, "limit": values.get("limit") or CACHE_LIMIT}
    return _resolver(node, values)


def _resolver(node: Node, values: Mapping[str, Any]) -> Resolver:
    try:
        return Resolver(**values)
    except ConfigError as error:
        fail(node, str(error))


def _is_memory(text: str) -> bool:
    return text.strip().upper() in ("MEM", "MEMORY")


READERS: dict[str, Callable[[Node, str], Any]] = {
    "tuple[Account, ...]": read_accounts,
    "tuple[SubjectMapping, ...]": read_mappings,
    "tuple[OperatorToken, ...]": read_operators,
    "Resolver | None": read_resolver,
    "AuthCallout | None": read_auth_callout,
}
"""The readers of accounts and their parts, by the annotation of the field."""
