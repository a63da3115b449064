"""
The client's identity as CONNECT fields: user and password, token, nkey, or a creds file.

An nkey is an ed25519 key written in base32: prefix, key, checksum. The server
sends a nonce in its INFO, and we sign it; the seed never leaves this process.
"""

from __future__ import annotations

import base64
import binascii
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.client.connection.servers import Server
from penstock.client.options import ClientOptions
from penstock.errors import ConfigError
from penstock.keys import nkeys

SEED_PREFIX = 18 << 3
"""Makes a seed start with `S`. The next letter names the kind of key."""


def identity(options: ClientOptions, server: Server, nonce: str) -> dict[str, str]:
    """Return the CONNECT fields of our identity. Options win over the URL's user and token."""
    if options.credentials is not None:
        jwt, seed = read_credentials(Path(options.credentials))
        return {"jwt": jwt, "sig": sign(seed, nonce)}
    if options.nkey_seed is not None:
        seed = options.nkey_seed
        return {"nkey": public_key(seed), "sig": sign(seed, nonce)}
    if options.token is not None:
        return {"auth_token": options.token}
    if options.user is not None:
        return {"user": options.user, "pass": options.password or ""}
    if server.token is not None:
        return {"auth_token": server.token}
    if server.user is not None:
        return {"user": server.user, "pass": server.password or ""}
    return {}


def read_credentials(path: Path) -> tuple[str, str]:
    """Return the JWT and the seed of a creds file."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"`credentials`: cannot read {path}: {error.strerror}") from None
    blocks = [
        lines[index + 1].strip()
        for index, line in enumerate(lines[:-1])
        if line.startswith("-----BEGIN ")
    ]
    if len(blocks) != 2:
        raise ConfigError(f"`credentials`: {path} must hold a JWT and a seed")
    return blocks[0], blocks[1]


def sign(seed: str, nonce: str) -> str:
    """Sign the server's nonce as CONNECT wants it: base64url without padding."""
    signature = _private_key(seed).sign(nonce.encode())
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def public_key(seed: str) -> str:
    """Return the public nkey of a seed."""
    prefix, _ = decode_seed(seed)
    return nkeys.encode(prefix, _private_key(seed).public_key().public_bytes_raw())


def decode_seed(seed: str) -> tuple[int, bytes]:
    """Return the public prefix and the 32 bytes of an nkey seed."""
    try:
        raw = base64.b32decode(seed.strip() + "=" * (-len(seed.strip()) % 8))
    except binascii.Error:
        raise ConfigError("the nkey seed is not base32; hint: it starts with `SU`") from None
    checksum = int.from_bytes(raw[-2:], "little")
    if len(raw) != 36 or binascii.crc_hqx(raw[:-2], 0) != checksum:
        raise ConfigError("the nkey seed is damaged: its checksum does not match")
    if raw[0] & 0b11111000 != SEED_PREFIX:
        raise ConfigError("that nkey is not a seed; hint: a seed starts with `S`")
    # The 5 bits of the public prefix straddle the first two bytes.
    return (raw[0] & 0b111) << 5 | raw[1] >> 3, raw[2:34]


def _private_key(seed: str) -> Any:
    try:
        ed25519 = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError:
        raise ConfigError(
            "nkeys and creds files need ed25519; hint: pip install 'penstock[security]'"
        ) from None
    return ed25519.Ed25519PrivateKey.from_private_bytes(decode_seed(seed)[1])
