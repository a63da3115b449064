"""Addresses as configurations write them: `example.com:4222`, `[::1]:4222`, or a host alone."""

from __future__ import annotations


def split_address(text: str) -> tuple[str, int | None]:
    """Return host and port, None without a port; raise ValueError if it is no address."""
    host, colon, port = ("", "", text) if text.endswith("]") else text.rpartition(":")
    if not colon:
        host = port
    elif not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"`{port}` is not a port")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port) if colon else None
    if ":" in host:
        raise ValueError("an IPv6 address needs brackets, as in `[::1]:4222`")
    return host, int(port) if colon else None
