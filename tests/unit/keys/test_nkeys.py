"""Public keys as text, and signatures made with the keys behind them."""

from __future__ import annotations

import sys

import pytest
from tests.contract.credentials import ACCOUNT, USER, Key

from penstock.client.connection import auth
from penstock.errors import ConfigError
from penstock.keys import nkeys


def test_a_public_key_is_read_back() -> None:
    text = nkeys.encode(nkeys.USER_PREFIX, bytes(range(32)))

    assert text.startswith("U")
    assert nkeys.decode(text) == (nkeys.USER_PREFIX, bytes(range(32)))


@pytest.mark.parametrize(
    "text",
    ["", "U", "not base32", "UA" * 28, nkeys.encode(nkeys.USER_PREFIX, bytes(31)), "Ü" * 56],
)
def test_what_is_no_public_key_is_told(text: str) -> None:
    assert not nkeys.is_public(text, nkeys.USER_PREFIX)


def test_a_key_of_another_kind_is_told() -> None:
    assert nkeys.is_public(Key(USER).public, nkeys.USER_PREFIX)
    assert not nkeys.is_public(Key(ACCOUNT).public, nkeys.USER_PREFIX)


def test_a_signature_is_that_of_its_key_and_its_text() -> None:
    key, other = Key(USER), Key(USER)
    signature = auth.sign(key.seed, "nonce")

    assert nkeys.verify(key.public, b"nonce", signature)
    assert not nkeys.verify(other.public, b"nonce", signature)
    assert not nkeys.verify(key.public, b"another", signature)


@pytest.mark.parametrize("signature", ["", "A", "x" * 86, "not base64", "é"])
def test_garbage_is_no_signature(signature: str) -> None:
    assert not nkeys.verify(Key(USER).public, b"nonce", signature)


def test_both_alphabets_of_base64_are_read() -> None:
    assert nkeys.decode_base64("_-8") == nkeys.decode_base64("/+8=") == b"\xff\xef"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)

    with pytest.raises(ConfigError, match=r"an nkey needs .* 'penstock\[security\]'"):
        nkeys.require_cryptography("an nkey")
