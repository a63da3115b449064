"""Seeds, signatures and creds files."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from penstock.client.connection import auth
from penstock.client.connection.servers import Server
from penstock.client.options import ClientOptions
from penstock.errors import ConfigError

# The pair of keys in the NATS documentation.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"

CREDS = f"""\
-----BEGIN NATS USER JWT-----
aaa.bbb.c-c
------END NATS USER JWT------

************************* IMPORTANT *************************
-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
"""


def test_a_seed_gives_its_public_key() -> None:
    pytest.importorskip("cryptography")

    assert PUBLIC == auth.public_key(SEED)


def test_a_signature_can_be_checked_with_the_public_key() -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    signature = auth.sign(SEED, "nonce")
    public = base64.b32decode(PUBLIC)[1:33]

    ed25519.Ed25519PublicKey.from_public_bytes(public).verify(
        base64.urlsafe_b64decode(signature + "=="), b"nonce"
    )
    assert "=" not in signature


@pytest.mark.parametrize(
    ("seed", "match"),
    [
        ("not base32!", "not base32"),
        (SEED[:-1] + "A", "damaged"),
        (SEED[:20], "not base32|damaged"),
        (PUBLIC, "damaged|not a seed"),
    ],
)
def test_what_is_no_seed_is_told_apart(seed: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        auth.decode_seed(seed)


def test_a_creds_file_holds_a_jwt_and_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "user.creds"
    path.write_text(CREDS)

    assert ("aaa.bbb.c-c", SEED) == auth.read_credentials(path)


@pytest.mark.parametrize("text", ["", "-----BEGIN NATS USER JWT-----", "nothing"])
def test_a_creds_file_without_both_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "user.creds"
    path.write_text(text)

    with pytest.raises(ConfigError, match="must hold a JWT and a seed"):
        auth.read_credentials(path)


def test_a_creds_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.creds"):
        auth.read_credentials(tmp_path / "missing.creds")


def test_without_cryptography_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cryptography.hazmat.primitives.asymmetric.ed25519"
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=r"pip install 'penstock\[security\]'"):
        auth.sign(SEED, "nonce")


@pytest.mark.parametrize(
    ("options", "server", "expected"),
    [
        (ClientOptions(), Server(host="h"), {}),
        (ClientOptions(token="t"), Server(host="h"), {"auth_token": "t"}),
        (ClientOptions(user="u"), Server(host="h"), {"user": "u", "pass": ""}),
        (ClientOptions(), Server(host="h", token="t"), {"auth_token": "t"}),
        (
            ClientOptions(),
            Server(host="h", user="u", password="p"),
            {"user": "u", "pass": "p"},
        ),
        (
            ClientOptions(user="mine", password="p"),
            Server(host="h", user="u", password="p"),
            {"user": "mine", "pass": "p"},
        ),
    ],
)
def test_settings_come_before_what_a_url_says(
    options: ClientOptions, server: Server, expected: dict[str, str]
) -> None:
    assert expected == auth.identity(options, server, "")
