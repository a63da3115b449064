"""Public NATS keys: a prefix byte, 32 bytes, and a checksum, in base 32."""

from __future__ import annotations

import base64
import binascii

SERVER_PREFIX = 13 << 3
"""Gives keys that start with `N`."""


def encode(prefix: int, key: bytes) -> str:
    """Return the text form of a public key."""
    raw = bytes([prefix]) + key
    # CRC-16/XMODEM, which binascii has under its old name.
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode()
