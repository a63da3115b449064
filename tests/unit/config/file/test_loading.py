"""From file, environment and flags to a configuration."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.accounts import Permissions, ResponseRules, SubjectRules, User
from penstock.config.file.directives import (
    ALIASES,
    BLOCKS,
    DIRECTIVES,
    FLAGS,
    IGNORED,
    IGNORED_FLAGS,
    REFUSED_FLAGS,
    UNSUPPORTED,
)
from penstock.config.file.flags import parse_flags
from penstock.config.file.loading import load, reader_of
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, Limits, ServerConfig
from penstock.config.transport import TlsConfig, WebSocketConfig
from penstock.errors import ConfigError

NATS_SERVER = Path(sys.executable).parent / "nats-server"


@pytest.fixture
def options(tmp_path):
    """Load options from the text of a file, the environment and arguments."""

    def load_options(text="", *arguments, **environ):
        path = tmp_path / "x.conf"
        path.write_text(text)
        given, _ = parse_flags(arguments, FLAGS)
        return load(str(path), environ, given)

    return load_options


@pytest.fixture
def errors(options, tmp_path):
    """Return the lines of the error that options give, without the directory."""

    def load_errors(text="", *arguments, **environ):
        with pytest.raises(ConfigError) as caught:
            options(text, *arguments, **environ)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return load_errors


def test_nothing_said_is_every_default():
    options = load(None, {}, [])

    assert ServerConfig() == options.server


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("port: 4333", ServerConfig(port=4333)),
        ("PORT: 4333", ServerConfig(port=4333)),
        ("port: 0", ServerConfig()),
        ("net: localhost", ServerConfig(host="localhost")),
        ("listen: localhost:-1", ServerConfig(host="localhost", port=-1)),
        ("listen: 4333", ServerConfig(port=4333)),
        ("listen: ':4333'", ServerConfig(port=4333)),
        ("listen: '[::1]:4333'", ServerConfig(host="::1", port=4333)),
        ("http: localhost:8222", ServerConfig(http_host="localhost", http_port=8222)),
        ("monitor_port: 8222", ServerConfig(http_port=8222)),
        ("http_port: 0", ServerConfig()),
        ("server_name: 123", ServerConfig(server_name="123")),
        ("no_advertise: yes", ServerConfig(no_advertise=True)),
        ("server_tags: [a, b]", ServerConfig(server_tags=("a", "b"))),
        ("server_tags: a", ServerConfig(server_tags=("a",))),
        ("server_metadata { a: b, c: 1 }", ServerConfig(server_metadata={"a": "b", "c": "1"})),
        ("x: 4333\nport: $x", ServerConfig(port=4333)),
    ],
)
def test_directives_set_the_server(text, config, options):
    assert config == options(text).server


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("max_payload: 8MB", Limits(max_payload=8 << 20)),
        ("max_conn: 64K", Limits(max_connections=64000)),
        ("max_connections: -1", Limits(max_connections=0)),
        ("max_subs: -1", Limits(max_subscriptions=0)),
        ("ping_interval: 2m", Limits(ping_interval=120.0)),
        ("ping_interval: '1h1m1.5s'", Limits(ping_interval=3661.5)),
        ("ping_interval: 100ms", Limits(ping_interval=0.1)),
        ("ping_interval: 30", Limits(ping_interval=30.0)),
        ('write_deadline: "5s"', Limits(write_deadline=5.0)),
        ("authorization { timeout: 1.5 }", Limits(auth_timeout=1.5)),
    ],
)
def test_directives_set_the_limits(text, limits, options):
    assert limits == options(text).server.limits


@pytest.mark.parametrize(
    ("text", "jetstream"),
    [
        ("", None),
        ("store_dir: /x", None),
        ("jetstream: false", None),
        ("jetstream: disabled", None),
        ("jetstream { enabled: false }", None),
        ("jetstream: true", JetStreamConfig(store_dir="/data/penstock/jetstream")),
        ("jetstream: enabled", JetStreamConfig(store_dir="/data/penstock/jetstream")),
        ("jetstream { store: /x }", JetStreamConfig(store_dir="/x")),
        ("jetstream: true\nstore_dir: /x", JetStreamConfig(store_dir="/x")),
        (
            'jetstream { store_dir: /x, max_mem: 1G, max_file: "1G", domain: d }',
            JetStreamConfig(store_dir="/x", max_mem=10**9, max_file=1 << 30, domain="d"),
        ),
        ("jetstream { store: /x, max_mem: -1 }", JetStreamConfig(store_dir="/x")),
        (
            'jetstream { store: /x, max_index: "8MB" }',
            JetStreamConfig(store_dir="/x", max_index=8 << 20),
        ),
        ("jetstream { store: /x, sync: always }", JetStreamConfig(store_dir="/x")),
        (
            "jetstream { store: /x, sync_interval: 2m }",
            JetStreamConfig(store_dir="/x", sync_interval=120.0),
        ),
    ],
)
def test_directives_set_jetstream(text, jetstream, options):
    assert jetstream == options(text, XDG_DATA_HOME="/data").server.jetstream


def user(permissions=None):
    return Authorization(users=(User(name="a", password="b", permissions=permissions),))


@pytest.mark.parametrize(
    ("text", "authorization"),
    [
        ("token: t", Authorization(token="t")),
        ("user: a, password: b", user()),
        ("username: a, pass: b", user()),
        ("users: [{user: a, pass: b}]", user()),
        ("users: [{user: a}]", Authorization(users=(User(name="a", password=""),))),
        (
            "users: [{user: a, password: 0123}]",
            Authorization(users=(User(name="a", password="0123"),)),
        ),
        (
            "default_permissions { publish: x }\nusers: [{user: a, pass: b}]",
            Authorization(
                users=user().users,
                default_permissions=Permissions(publish=SubjectRules(allow=("x",))),
            ),
        ),
    ],
)
def test_directives_set_who_may_connect(text, authorization, options):
    config = options(f"authorization {{\n{text}\n}}").server

    assert authorization == config.authorization


@pytest.mark.parametrize(
    ("text", "permissions"),
    [
        ("publish: a", Permissions(publish=SubjectRules(allow=("a",)))),
        ("pub: [a, b.>]", Permissions(publish=SubjectRules(allow=("a", "b.>")))),
        (
            "publish { allow: a, deny: [b, c] }",
            Permissions(publish=SubjectRules(allow=("a",), deny=("b", "c"))),
        ),
        ("publish { deny: b }", Permissions(publish=SubjectRules(deny=("b",)))),
        ("publish {}", Permissions()),
        ('subscribe: "a queue"', Permissions(subscribe=SubjectRules(allow=("a queue",)))),
        ("allow_responses: false", Permissions()),
        ("allow_responses: true", Permissions(allow_responses=ResponseRules())),
        (
            "publish: a, allow_responses { max: 5, expires: 1m }",
            Permissions(
                publish=SubjectRules(allow=("a",)),
                allow_responses=ResponseRules(messages_max=5, expires_s=60.0),
            ),
        ),
        (
            "publish: a, allow_responses { max: 0, ttl: '-1s' }",
            Permissions(
                publish=SubjectRules(allow=("a",)),
                allow_responses=ResponseRules(messages_max=1, expires_s=-1.0),
            ),
        ),
    ],
)
def test_permissions_are_subjects_lists_or_blocks(text, permissions, options):
    text = f"authorization {{ users: [{{user: a, pass: b, permissions {{ {text} }} }}] }}"

    assert user(permissions) == options(text).server.authorization


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("prot: 1", "1:1: unknown directive `prot`; did you mean `port`?"),
        ("qqq: 1", "1:1: unknown directive `qqq`"),
        (
            "authorization { usr: a }",
            "1:17: unknown directive `authorization.usr`; did you mean `authorization.user`?",
        ),
        ("port: abc", '1:1: `port` expects a number, not "abc"'),
        ("port: true", '1:1: `port` expects a number, not "true"'),
        ("port: 4e9", '1:1: `port` expects a number, not "4e9"'),
        ("port: 99999", "1:1: `port` must be between -1 and 65535: 99999"),
        ("host: [a]", "1:1: `host` expects a string, not a list"),
        ("debug: 1", '1:1: `debug` expects `true` or `false`, not "1"'),
        ("listen: a", '1:1: `listen` expects `host:port` or a port, not "a"'),
        (
            "listen: ::1:4222",
            "1:1: `listen` needs brackets round the IPv6 address, as in `[::1]:4222`",
        ),
        (
            "ping_interval: soon",
            '1:1: `ping_interval` expects a duration such as "30s" or "2m", not "soon"',
        ),
        ("ping_interval: 0", "1:1: `ping_interval` must be more than 0"),
        ("server_metadata: a", '1:1: `server_metadata` expects a block, not "a"'),
        ("max_payload: 65MB", "1:1: `max_payload` must not be higher than `max_pending`"),
        (
            "lame_duck_duration: 29.999s",
            "1:1: invalid `lame_duck_duration` of 29.999s, minimum is 30 seconds",
        ),
        (
            "lame_duck_grace_period: 2m",
            "1:1: `lame_duck_duration` must be longer than `lame_duck_grace_period`",
        ),
        (
            "jetstream: maybe",
            '1:1: `jetstream` expects a boolean, `enabled`, `disabled` or a block, not "maybe"',
        ),
        ("no_auth_user: z", '1:1: `no_auth_user` "z" is not one of the users'),
        ("authorization: a", "1:1: `authorization` expects a block"),
        ("authorization { password: a }", "1:17: `password` needs a `user`"),
        (
            "authorization { users: a }",
            '1:17: `authorization.users` expects a list of users, not "a"',
        ),
        (
            "authorization { users: [{pass: a}] }",
            "1:25: each of `users` needs a `user` or an `nkey`",
        ),
        (
            "authorization { user: a, users: [] }",
            "1:17: there is both a single user and a list of `users`",
        ),
        (
            "authorization { users: [{nkey: a}] }",
            '1:25: `nkey` "a" is not the public key of a user; '
            "hint: it starts with `U` and has 56 characters",
        ),
        (
            "authorization { users: [{user: a, allowed_connection_types: [LEAF]}] }",
            '1:25: `allowed_connection_types` has an unknown type "LEAF"; hint: '
            "one of STANDARD, WEBSOCKET, LEAFNODE, LEAFNODE_WS, MQTT, MQTT_WS, IN_PROCESS",
        ),
        (
            "authorization { permissions { publish: 'a b' } }",
            '1:31: `authorization.default_permissions.publish` has an invalid subject "a b"',
        ),
        (
            "authorization { permissions { publish: [] } }",
            "1:31: `authorization.default_permissions.publish` is an empty list; "
            'to allow nothing, write `deny: ">"`',
        ),
        (
            "authorization { permissions { published: a } }",
            "1:31: unknown field `published` in `authorization.default_permissions`; hint: one of "
            "pub, publish, sub, subscribe, allow_responses, publish_allow_responses",
        ),
        (
            "tls { }",
            "1:1: `tls` needs both `tls.cert_file` and `tls.key_file`; behind a proxy "
            "that ends TLS, use `allow_non_tls: true` instead",
        ),
        (
            "tls { cert_file: c, key_file: k, min_version: 1.1 }",
            '1:34: `tls.min_version` is "1.2" or "1.3", not "1.1"',
        ),
        (
            "tls { cert_file: c, key_file: k, handshake_first: soon }",
            '1:34: `tls.handshake_first` expects a boolean, `auto` or a duration, not "soon"',
        ),
        (
            "tls { cert_file: c, key_file: k, pinned_certs: [x] }",
            '1:34: `tls.pinned_certs` has "x", which is not a hexadecimal SHA-256',
        ),
        ("https_port: 8443", "1:1: `https_port` needs a `tls` block with a certificate"),
        (
            "websocket { port: 80 }",
            "1:13: `websocket.port` needs a `tls` block, or `no_tls: true`",
        ),
        (
            "websocket { port: 80, no_tls: true, origin: x }",
            '1:37: `websocket.allowed_origins` has "x", which is not like "https://example.com"',
        ),
        (
            "websocket { port: 80, no_tls: true, headers { Upgrade: x } }",
            '1:37: `websocket.headers` must not set "Upgrade"',
        ),
        (
            "cluster { routes: [a] }",
            "1:11: `cluster.routes` is not supported: Penstock runs on one machine; "
            "use a nats-server cluster for more",
        ),
        (
            "jetstream { tpm {} }",
            "1:13: `tpm` is not supported: set `jetstream.key`, for instance from the "
            "environment: `key: $JETSTREAM_KEY`",
        ),
    ],
)
def test_an_error_names_the_directive_and_its_place(text, error, errors):
    assert [f"Parse error in x.conf:{error}"] == errors(text)


TLS = "cert_file: c, key_file: k"


@pytest.mark.parametrize(
    ("text", "tls"),
    [
        (f"tls {{ {TLS} }}", {}),
        (f"tls {{ {TLS}, verify: true, ca_file: a }}", {"verify": True, "ca_file": "a"}),
        (f"tls {{ {TLS}, handshake_first: true }}", {"handshake_first": 0.0}),
        (f"tls {{ {TLS}, first: off }}", {"handshake_first": None}),
        (f"tls {{ {TLS}, immediate: auto }}", {"handshake_first": 0.05}),
        (f'tls {{ {TLS}, handshake_first: "300ms" }}', {"handshake_first": 0.3}),
        (f"tls {{ {TLS}, timeout: 5, min_version: 1.3 }}", {"timeout": 5, "min_version": "1.3"}),
        (f"tls {{ {TLS}, curve_preferences: [X25519] }}", {"curve_preferences": ("X25519",)}),
    ],
)
def test_directives_set_tls(text, tls, options):
    expected = TlsConfig(**{"cert_file": "c", "key_file": "k"} | tls)

    assert expected == options(text).server.tls


@pytest.mark.parametrize(
    ("text", "websocket"),
    [
        ("websocket { port: 80, no_tls: true }", {"port": 80, "no_tls": True}),
        ("ws { listen: 'h:80', no_tls: yes }", {"host": "h", "port": 80, "no_tls": True}),
        (
            f"websocket {{ port: 443, tls {{ {TLS} }}, origins: 'https://x.org' }}",
            {
                "port": 443,
                "tls": TlsConfig(cert_file="c", key_file="k"),
                "allowed_origins": ("https://x.org",),
            },
        ),
    ],
)
def test_directives_set_websocket(text, websocket, options):
    server = options(text).server

    assert (WebSocketConfig(**websocket), None) == (server.websocket, server.tls)


def test_a_websocket_block_without_a_port_is_off(options):
    assert options("websocket { compression: true }").server.websocket is None


def test_flags_of_tls_win_over_the_block_and_can_switch_it_off(options):
    text = f"tls {{ {TLS} }}"

    assert options(text, "--tlscert", "x").server.tls.cert_file == "x"
    assert options(text, "--tls=false").server.tls is None


def test_what_has_no_effect_is_warned_of(options, tmp_path):
    given, _ = parse_flags(["--cluster_name", "c"], (*FLAGS, *IGNORED_FLAGS))
    path = tmp_path / "x.conf"
    path.write_text("leaf { listen: 'a:1' }\nsyslog: false\nprof_port: 1\n")

    warnings = load(str(path), {}, given).warnings

    assert [
        f"{path}:1:1: `leaf` has no effect: Penstock is a single server, "
        "and no other server can join it",
        f"{path}:3:1: `prof_port` has no effect: it tunes an internal part of nats-server that "
        "Penstock does not have",
        "flag -cluster_name has no effect: Penstock is a single server, "
        "and no other server can join it",
    ] == list(warnings)


def test_each_directive_remembers_its_source(options):
    sources = options("port: 1\nmax_payload: 1K", "-m", "2", PENSTOCK__PING_MAX="3").sources

    assert sources["http_port"] == "flag -m"
    assert sources["ping_max"] == "environment variable PENSTOCK__PING_MAX"
    assert sources["port"].endswith("x.conf:1:1")


def test_a_token_and_users_exclude_each_other(errors):
    text = "authorization { token: t, users: [{user: a, pass: b}] }"

    assert ["`authorization` has both a `token` and users: choose one"] == errors(text)


def test_all_errors_are_told_at_once(errors):
    assert 3 == len(errors("prot: 1\nmax_payload: x\nmqtt { }"))


def test_the_environment_wins_over_the_file_and_flags_win_over_both(options):
    text = "port: 1\nhost: a\nserver_name: a"

    config = options(text, "-p", "3", PENSTOCK__PORT="2", PENSTOCK__HOST="b").server

    assert ServerConfig(port=3, host="b", server_name="a") == config


def test_the_environment_reaches_into_blocks(options):
    config = options(
        PENSTOCK__JETSTREAM__STORE_DIR="/x",
        PENSTOCK__AUTHORIZATION="{users: [{user: a, pass: b}]}",
    ).server

    assert ServerConfig(authorization=user(), jetstream=JetStreamConfig(store_dir="/x")) == config


def test_a_block_of_the_environment_is_whole_or_in_parts(errors):
    environ = {"PENSTOCK__JETSTREAM": "true", "PENSTOCK__JETSTREAM__DOMAIN": "d"}

    assert [
        "Parse error in environment variable PENSTOCK__JETSTREAM:1:1: "
        "`jetstream` is set both as a whole and in part"
    ] == errors(**environ)


def test_variables_of_container_platforms_are_left_alone(options):
    assert ServerConfig() == options(PENSTOCK_PORT="tcp://10.0.0.1:4222").server


def test_errors_in_the_environment_and_in_flags_name_the_variable_and_the_flag(errors):
    assert [
        'Parse error in environment variable PENSTOCK__PORT:1:1: `port` expects a number, not "x"'
    ] == errors(PENSTOCK__PORT="x")
    assert ["Parse error in flag -p: `port` must be between -1 and 65535: 99999"] == errors(
        "", "-p", "99999"
    )


def test_flags_set_directives(options):
    result = options("", "-DV", "-m", "8222", "-js", "-sd=/x", "-l", "f", "-P", "p", "-T=false")

    assert ServerConfig(http_port=8222, jetstream=JetStreamConfig(store_dir="/x")) == result.server
    assert (True, True) == (result.process.debug, result.process.trace)
    assert ("f", "p", False) == (
        result.process.log_file,
        result.process.pid_file,
        result.process.logtime,
    )


def test_a_store_directory_alone_does_not_switch_jetstream_on(options):
    assert options("", "-sd", "/x").server.jetstream is None


def test_credentials_of_flags_push_out_those_of_the_file(options):
    text = "authorization { user: x, password: b }"

    assert user() == options(text, "--user", "a").server.authorization
    assert Authorization(token="t") == options(text, "--auth", "t").server.authorization
    assert (
        user()
        == options("authorization { token: t }", "--user", "a", "--pass", "b").server.authorization
    )


def test_a_single_user_in_flags_does_not_silently_drop_a_list(errors):
    text = "authorization { users: [{user: a, pass: b}] }"

    assert [
        "Parse error in flag -user: there is both a single user and a list of `users`"
    ] == errors(text, "--user", "a")


def test_every_kind_of_directive_has_a_reader():
    assert all(callable(reader_of(directive.kind)) for directive in DIRECTIVES.values())


def test_a_name_means_one_thing():
    names = [*DIRECTIVES, *ALIASES, *UNSUPPORTED, *IGNORED, *BLOCKS]
    flags = [name for flag in (*FLAGS, *IGNORED_FLAGS) for name in flag.names]
    flags += REFUSED_FLAGS

    assert len(set(names)) == len(names)
    assert len(set(flags)) == len(flags)


def test_every_flag_of_nats_server_is_taken_or_refused_by_name():
    help_text = subprocess.run([NATS_SERVER, "--help"], capture_output=True, text=True).stdout
    known = {name for flag in (*FLAGS, *IGNORED_FLAGS) for name in flag.names}
    known |= REFUSED_FLAGS.keys()
    known |= {"c", "config", "t", "sl", "signal", "h", "help", "v", "version"}

    names = {
        name
        for line in re.findall(r"^ +(-.{0,32})", help_text, re.MULTILINE)
        for name in re.findall(r"(?<![\w-])--?(\w+)", line)
    }

    assert {"p", "port", "cluster_name", "help_tls"} <= names
    assert set() == names - known
