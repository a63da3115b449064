"""Curve keys of NATS: only the recipient can read what the sender encrypts."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.keys import nkeys

VERSION = b"xkv1"


class CurveKey:
    """A key pair of this server, made from 32 random bytes."""

    def __init__(self, secret: bytes) -> None:
        self._key = _nacl().PrivateKey(secret)
        self.public = nkeys.encode(nkeys.CURVE_PREFIX, bytes(self._key.public_key))

    def seal(self, data: bytes, recipient: str, nonce: bytes) -> bytes:
        """Encrypt for the owner of a public key; the nonce has 24 bytes and is used once."""
        return VERSION + bytes(self._box(recipient).encrypt(data, nonce))

    def open(self, data: bytes, sender: str) -> bytes:
        """Decrypt a message from the owner of a public key; ValueError if that fails."""
        if not data.startswith(VERSION):
            raise ValueError("it is not encrypted in the NATS format")
        from nacl.exceptions import CryptoError

        try:
            return bytes(self._box(sender).decrypt(data.removeprefix(VERSION)))
        except CryptoError:
            raise ValueError("it was encrypted with another key") from None

    def _box(self, other: str) -> Any:
        nacl = _nacl()
        return nacl.Box(self._key, nacl.PublicKey(nkeys.decode(other)[1]))


def require_nacl() -> None:
    """Raise early if PyNaCl is missing."""
    try:
        _nacl()
    except ImportError as error:
        raise ConfigError(
            "an `xkey` needs the PyNaCl package; hint: pip install 'penstock[security]'"
        ) from error


def _nacl() -> Any:
    from nacl import public

    return public
