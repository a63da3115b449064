"""Addresses as others write them, before it is known who they are."""

from __future__ import annotations

import ipaddress

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def read_ip(text: str) -> IpAddress:
    """Return an address; ValueError if it is none. A zone is none: it may be any text at all."""
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    return ipaddress.ip_address(text)


def readable(ip: IpAddress) -> str:
    """Return an address as it is shown: one of IPv4 in the clothes of IPv6 as what it is."""
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
