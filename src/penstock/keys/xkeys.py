"""Curve keys of NATS: what one encrypts to the other, nobody else can read."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.keys import nkeys

VERSION = b"xkv1"


class CurveKey:
    """A key pair of the server's own, made of 32 random bytes."""

    def __init__(self, secret: bytes) -> None:
        self._key = _nacl().PrivateKey(secret)
        self.public = nkeys.encode(nkeys.CURVE_PREFIX, bytes(self._key.public_key))

    def seal(self, data: bytes, recipient: str, nonce: bytes) -> bytes:
        """Encrypt for the owner of a public key; the nonce has 24 bytes, used once."""
        return VERSION + bytes(self._box(recipient).encrypt(data, nonce))

    def open(self, data: bytes, sender: str) -> bytes:
        """Return what the owner of a public key has encrypted for us; ValueError if it is not."""
        if not data.startswith(VERSION):
            raise ValueError("it is not encrypted as NATS does")
        from nacl.exceptions import CryptoError

        try:
            return bytes(self._box(sender).decrypt(data.removeprefix(VERSION)))
        except CryptoError:
            raise ValueError("it was encrypted with another key") from None

    def _box(self, other: str) -> Any:
        nacl = _nacl()
        return nacl.Box(self._key, nacl.PublicKey(nkeys.decode(other)[1]))


def require_nacl() -> None:
    """Say what is missing before it is needed."""
    try:
        _nacl()
    except ImportError as error:
        raise ConfigError(
            "an `xkey` needs the PyNaCl package; hint: pip install 'penstock[security]'"
        ) from error


def _nacl() -> Any:
    from nacl import public

    return public
