"""Settings are checked before a socket is opened."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.jetstream.consume import ConsumeOptions
from penstock.client.jetstream.jetstream import JetStreamOptions
from penstock.client.options import ClientOptions
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"servers": ()}, "`servers` is empty"),
        ({"connect_timeout_s": 0}, "`connect_timeout_s` must be positive"),
        ({"pending_bytes_max": -1}, "`pending_bytes_max` must be positive"),
        ({"flush_bytes": 0}, "`flush_bytes` must be positive"),
        ({"user": "u", "token": "t"}, "only one of `user`, `token`"),
        ({"nkey_seed": "S", "credentials": "f"}, "only one of `nkey_seed`, `credentials`"),
        ({"password": "p"}, "`password` needs a `user`"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ClientOptions(**settings)


def test_attempts_may_be_without_end() -> None:
    assert -1 == ClientOptions(reconnect_attempts_max=-1).reconnect_attempts_max


def test_secrets_are_not_shown() -> None:
    shown = repr(ClientOptions(user="u", password="s3cret"))

    assert "s3cret" not in shown


@pytest.mark.parametrize(
    "settings",
    [{"window_messages_max": 0}, {"ack_timeout_s": 0}, {"domain": "d", "api_prefix": "x"}],
)
def test_wrong_jetstream_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        JetStreamOptions(**settings)


@pytest.mark.parametrize("settings", [{"batch": 0}, {"expires_s": 1.0, "heartbeat_s": 0.6}])
def test_wrong_consume_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConsumeOptions(**settings)
