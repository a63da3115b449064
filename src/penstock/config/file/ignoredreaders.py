"""
Blocks without effect, most of them about other servers: `cluster`, `gateway`, `leafnodes`.

They are still checked for mistakes. So an error in a file is found when the file is checked, not
when it moves to another server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.config.file.nodes import Node
from penstock.config.file.readers import (
    block_of,
    entries_of,
    fail,
    read_address,
    read_boolean,
    read_duration,
    read_number,
    read_text,
    read_texts,
)

Reader = Callable[[Node, str], Any]


def read_list(node: Node, name: str) -> list[Node]:
    """Return the entries of a list."""
    if not isinstance(node.value, list):
        fail(node, f"`{name}` expects a list")
    return node.value


def read_compression(node: Node, name: str) -> None:
    """Check a switch, the name of a mode, or a block."""
    if isinstance(node.value, list | int | float) and not isinstance(node.value, bool):
        fail(node, f"`{name}` expects a boolean, a mode or a block")


LISTENER: dict[str, Reader] = {
    "listen": read_address,
    "port": read_number,
    **dict.fromkeys(("host", "net", "advertise", "write_timeout"), read_text),
    **dict.fromkeys(("authorization", "tls"), block_of),
    "write_deadline": read_duration,
}
"""The directives that all of these blocks have."""
DIALER: dict[str, Reader] = {
    "name": read_text,
    "connect_retries": read_number,
    "connect_backoff": read_boolean,
}
BLOCKS: Mapping[str, Mapping[str, Reader]] = {
    "cluster": {
        **LISTENER,
        **DIALER,
        "routes": read_list,
        "cluster_advertise": read_text,
        "no_advertise": read_boolean,
        "permissions": block_of,
        "pool_size": read_number,
        "accounts": read_texts,
        "compression": read_compression,
        "ping_interval": read_duration,
        "ping_max": read_number,
    },
    "gateway": {
        **LISTENER,
        **DIALER,
        "gateways": read_list,
        **dict.fromkeys(("reject_unknown", "reject_unknown_cluster"), read_boolean),
    },
    "leafnodes": {
        **LISTENER,
        "remotes": read_list,
        **dict.fromkeys(("reconnect", "reconnect_delay", "reconnect_interval"), read_duration),
        "no_advertise": read_boolean,
        "compression": read_compression,
        "min_version": read_text,
        **dict.fromkeys(("isolate_leafnode_interest", "isolate"), read_boolean),
    },
    "jetstream.limits": {
        **dict.fromkeys(("max_ack_pending", "max_ha_assets", "max_request_batch"), read_number),
        "duplicate_window": read_duration,
        "batch": block_of,
    },
}
"""The directives of each block, and the readers of their values."""


def check_ignored(node: Node, name: str) -> None:
    """Report the errors in a block without effect."""
    readers = BLOCKS[name]
    for key, entry in entries_of(node, name, dict(zip(readers, readers, strict=True)), {}).items():
        readers[key](entry, f"{name}.{key}")
