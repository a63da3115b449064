"""The settings themselves: what they refuse, and what they keep to themselves."""

import pytest

from penstock.config.accounts import User
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, Limits, ProcessConfig, ServerConfig
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "settings", "reason"),
    [
        (Limits, {"max_pending": -1}, "`max_pending` must not be negative: -1"),
        (Limits, {"ping_interval": 0.0}, "`ping_interval` must be more than 0"),
        (Limits, {"read_bytes_max": 0}, "`read_bytes_max` must be more than 0"),
        (ProcessConfig, {"log_max_num": -1}, "`log_max_num` must not be negative: -1"),
        (ServerConfig, {"port": 65536}, "`port` must be between -1 and 65535: 65536"),
        (ServerConfig, {"http_port": -2}, "`http_port` must be between -1 and 65535: -2"),
        (ServerConfig, {"server_name": "a b"}, '`server_name` must not contain spaces: "a b"'),
        (JetStreamConfig, {"store_dir": ""}, "`jetstream.store_dir` is empty: name a directory"),
        (
            JetStreamConfig,
            {"store_dir": "x", "sync_interval": 0.0},
            "`jetstream.sync_interval` must be `always` or more than 0",
        ),
        (
            Authorization,
            {"token": "t", "users": (User(name="a", password="b"),)},
            "`authorization` has both a `token` and users: choose one",
        ),
        (
            Authorization,
            {"users": (User(name="a", password="b"), User(name="a", password="c"))},
            '`authorization` has more than one user "a"',
        ),
        (Authorization, {"no_auth_user": "z"}, '`no_auth_user` "z" is not one of the users'),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, settings, reason):
    with pytest.raises(ConfigError) as caught:
        config(**settings)

    assert reason == str(caught.value)


def test_zero_is_no_limit_where_the_setting_says_so():
    limits = Limits(max_connections=0, max_subscriptions=0)

    assert (0, 0) == (limits.max_connections, limits.max_subscriptions)


def test_secrets_are_not_printed():
    users = (User(name="a", password="secret"),)

    assert "secret" not in repr(ServerConfig(authorization=Authorization(users=users)))
    assert "secret" not in repr(ServerConfig(authorization=Authorization(token="secret")))


def test_clients_authenticate_only_if_there_is_somebody_to_be():
    assert not Authorization().required
    assert Authorization(token="t").required
    assert Authorization(users=(User(name="a", password="b"),)).required
