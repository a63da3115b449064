"""
NATS keys: an ed25519 key with a prefix for its kind and a checksum, in base 32.

Configurations and tokens name public keys; seeds stay with their owners.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from penstock.errors import ConfigError

SERVER_PREFIX = 13 << 3
"""Gives keys that start with `N`."""
OPERATOR_PREFIX = 14 << 3
"""Gives keys that start with `O`."""
ACCOUNT_PREFIX = 0
"""Gives keys that start with `A`."""
USER_PREFIX = 20 << 3
"""Gives keys that start with `U`."""
CURVE_PREFIX = 23 << 3
"""Gives keys that start with `X`: they encrypt, and do not sign."""

KEY_BYTES = 32


def encode(prefix: int, key: bytes) -> str:
    """Return the text form of a public key."""
    raw = bytes([prefix]) + key
    # CRC-16/XMODEM; binascii has it under its old name.
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode()


def decode(text: str) -> tuple[int, bytes]:
    """Return the prefix and the bytes of a public key; ValueError if it is not valid."""
    raw = base64.b32decode(text)
    if len(raw) != 1 + KEY_BYTES + 2:
        raise ValueError("a public key has 56 characters")
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("the checksum of the key does not match")
    return raw[0], raw[1:-2]


def is_public(text: str, prefix: int) -> bool:
    """Tell whether `text` is a public key of the kind of `prefix`."""
    try:
        return decode(text)[0] == prefix
    except ValueError:
        return False


def verify(public: str, data: bytes, signature: str) -> bool:
    """Tell whether `signature`, in base64, is the key owner's signature of `data`."""
    try:
        key = _ed25519().Ed25519PublicKey.from_public_bytes(decode(public)[1])
        key.verify(decode_base64(signature), data)
    except (ValueError, _invalid_signature()):
        return False
    return True


class KeyPair:
    """A key of this server, made from 32 random bytes."""

    def __init__(self, prefix: int, secret: bytes) -> None:
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self.public = encode(prefix, self._key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> str:
        """Return the signature in base64, as tokens contain it."""
        return encode_base64(self._key.sign(data))


def encode_base64(data: bytes) -> str:
    """Return base64 in the alphabet of URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64(text: str) -> bytes:
    """Return the bytes of base64 in either alphabet, padded or not."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


def require_cryptography(what: str) -> None:
    """Raise early if the package that checks `what` is missing."""
    try:
        _ed25519()
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the cryptography package; hint: pip install 'penstock[security]'"
        ) from error


def _ed25519() -> Any:
    # Most servers have no nkeys, and start faster without this import.
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519


def _invalid_signature() -> type[Exception]:
    from cryptography.exceptions import InvalidSignature

    return InvalidSignature
