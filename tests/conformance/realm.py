"""Every kind of user, and every way to a server: how it is told of them, and what a client says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bcrypt
from tests.certificates import Authority
from tests.contract.credentials import USER, Key, operator_config_and_creds
from tests.servers import HOST

OPEN, SECURE = ("nats", "ws"), ("tls", "wss")
EVERYBODY = ("nobody", "no_auth_user")
"""Kinds that need say nothing of themselves."""
KINDS = (
    *EVERYBODY,
    *("token", "user", "users", "bcrypt", "nkey", "accounts", "jwt", "certificate"),
)
BCRYPT_ROUNDS = 4


class Realm:
    """What a server and a client know of each other, for each kind of user."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self._server = self.authority.server()
        client = self.authority.client("ann", emails=("ann@example.org",))
        key, seed = Key(USER), directory / "user.nk"
        seed.write_text(key.seed)
        jwt, creds = operator_config_and_creds(directory)
        hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(BCRYPT_ROUNDS)).decode()
        password = {"user": "ann", "password": "secret"}
        self.config: dict[str, str] = {
            "nobody": "",
            "no_auth_user": "authorization { users = [ {user: ann, password: secret} ] }\n"
            "no_auth_user: ann\n",
            "token": "authorization { token: t0ken }",
            "user": "authorization { user: ann, password: secret }",
            "users": "authorization { users = [ {user: ann, password: secret} ] }",
            "bcrypt": f"authorization {{ users = [ {{user: ann, password: '{hashed}'}} ] }}",
            "nkey": f"authorization {{ users = [ {{nkey: {key.public}}} ] }}",
            "accounts": "accounts { A { users = [ {user: ann, password: secret} ] } }",
            "jwt": jwt,
            "certificate": "authorization { users = [ {user: 'ann@example.org'} ] }",
        }
        self.options: dict[str, dict[str, Any]] = {
            **{kind: {} for kind in EVERYBODY},
            "token": {"token": "t0ken"},
            **dict.fromkeys(("user", "users", "bcrypt", "accounts"), password),
            "nkey": {"nkeys_seed": str(seed)},
            "jwt": {"user_credentials": str(creds)},
            "certificate": {"cert": str(client.cert), "key": str(client.key)},
        }
        """In the words of nats-py; the other clients translate them."""

    def server_config(self, kind: str, *, is_secure: bool) -> str:
        """Return the configuration of a server with users of a kind, on TCP and WebSocket."""
        if not is_secure:
            return f"websocket {{ listen: '{HOST}:-1', no_tls: true }}\n{self.config[kind]}"
        files = {"cert_file": str(self._server.cert), "key_file": str(self._server.key)}
        if kind == "certificate":
            files |= {"ca_file": str(self.authority.ca), "verify_and_map": True}  # type: ignore[dict-item]
        tls = json.dumps(files)
        return f"tls {tls}\nwebsocket {{ listen: '{HOST}:-1', tls {tls} }}\n{self.config[kind]}"


def cells() -> list[tuple[str, bool]]:
    """Return each kind with each security that it can have; certificates come with TLS."""
    return [
        (kind, is_secure)
        for kind in KINDS
        for is_secure in (False, True)
        if is_secure or kind != "certificate"
    ]
