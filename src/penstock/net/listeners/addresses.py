"""Read and write network addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    IpAddress = IPv4Address | IPv6Address

EVERY_ADDRESS = ("0.0.0.0", "::")
"""The hosts that mean all addresses of the machine, of either family."""
MAPPED = "::ffff:"
"""The prefix of an IPv4 address on an IPv6 socket."""


def read_ip(text: str) -> IpAddress:
    """Return an address; raise ValueError if the text is not one, or has a zone (free text)."""
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    from ipaddress import ip_address

    return ip_address(text)


def address_of(host: str, port: int) -> str:
    """Return host and port for URLs and logs: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_ip(text: str) -> str:
    """Return a peer's address from the system's text; cheaper than `readable`."""
    return text.removeprefix(MAPPED) if "." in text else text


def readable(ip: IpAddress) -> str:
    """Return the text of an address: IPv4 for an IPv4-mapped IPv6 address."""
    mapped = ip.ipv4_mapped if ip.version == 6 else None
    return str(mapped or ip)
