"""Keys, JWTs and certificates that tests make for themselves."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.client.connection import auth
from penstock.keys import nkeys

OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


def new_seed(prefix: int) -> str:
    """Make an nkey seed of a kind."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = ed25519.Ed25519PrivateKey.generate().private_bytes_raw()
    # The prefix of the kind straddles two bytes behind the seed's own five bits.
    seed = nkeys.encode(auth.SEED_PREFIX | prefix >> 5, bytes([prefix << 3 & 0xFF]) + key)
    return seed.rstrip("=")


@dataclass
class Key:
    """An nkey with its public half."""

    prefix: int
    seed: str = field(init=False)
    public: str = field(init=False)

    def __post_init__(self) -> None:
        self.seed = new_seed(self.prefix)
        self.public = auth.public_key(self.seed)

    def jwt(self, subject: str, name: str, nats: dict[str, Any], **claims: Any) -> str:
        """Return a claim about `subject`, signed with this key."""
        header = _encode({"typ": "JWT", "alg": "ed25519-nkey"})
        claims = {
            "jti": name,
            "iat": 1,
            "iss": self.public,
            "sub": subject,
            "name": name,
            "nats": {"version": 2, **nats},
            **claims,
        }
        signed = f"{header}.{_encode(claims)}"
        return f"{signed}.{auth.sign(self.seed, signed)}"


def _encode(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


NO_LIMITS = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = {
    **NO_LIMITS,
    "conn": -1,
    "leaf": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
}


class Realm:
    """An operator and the accounts it has signed."""

    def __init__(self, **nats: Any) -> None:
        self.operator = Key(OPERATOR)
        self._nats = nats
        self._accounts: dict[str, str] = {}

    def sign(self, account: Key, name: str, **nats: Any) -> None:
        """Sign what an account is; a claim such as `exp` may be among it."""
        claims = {key: nats.pop(key) for key in ("exp", "iat") if key in nats}
        nats["limits"] = ACCOUNT_LIMITS | nats.pop("limits", {})
        self._accounts[account.public] = self.operator.jwt(
            account.public, name, {"type": "account", **nats}, **claims
        )

    @property
    def config(self) -> str:
        """The configuration of a server that trusts the operator."""
        operator = self.operator
        token = operator.jwt(operator.public, "operator", {"type": "operator", **self._nats})
        preload = "\n".join(f"{key}: {jwt}" for key, jwt in self._accounts.items())
        return f"operator: {token}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"


def write_credentials(path: Path, jwt: str, seed: str) -> Path:
    """Write a creds file."""
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return path


def operator_config_and_creds(directory: Path) -> tuple[str, Path]:
    """Return the configuration of a server with an operator, and a user's creds file."""
    account, user, realm = Key(ACCOUNT), Key(USER), Realm()
    realm.sign(account, "account")
    user_jwt = account.jwt(user.public, "user", {"type": "user", **NO_LIMITS})
    return realm.config, write_credentials(directory / "user.creds", user_jwt, user.seed)


def make_certificate(directory: Path, name: str = "server") -> tuple[Path, Path]:
    """Make a certificate for localhost that is its own authority; return it and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 "
        f"-keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return certificate, key
