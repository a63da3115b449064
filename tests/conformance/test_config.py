"""Configuration files on the real server and on ours: both take the same, or we say why not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.servers import NATS_SERVER

from penstock.cli.main import main
from penstock.config.file.directives import (
    ALIASES,
    BLOCK_ALIASES,
    BLOCKS,
    DIRECTIVES,
    IGNORED,
    UNSUPPORTED,
)

OF_NATS_SERVER = """
listen client_advertise port server_name host net debug trace trace_verbose trace_headers logtime
logtime_utc mappings maps disable_sublist_cache no_sublist_cache accounts default_sentinel
authorization http https http_port monitor_port https_port http_base_path cluster gateway leaf
leafnodes store_dir storedir jetstream logfile log_file logfile_size_limit log_size_limit
logfile_max_num log_max_num syslog remote_syslog pidfile pid_file ports_file_dir prof_port
prof_block_rate max_control_line max_payload max_pending proxy_protocol max_connections max_conn
max_traced_msg_len max_subscriptions max_subs max_sub_tokens max_subscription_tokens ping_interval
ping_max tls ocsp allow_non_tls write_deadline write_timeout lame_duck_duration
lame_duck_grace_period operator operators roots root root_operators root_operator resolver
account_resolver accounts_resolver resolver_tls resolver_preload resolver_pinned_accounts
no_auth_user system_account system no_system_account no_system no_sys_acc no_header_support trusted
trusted_keys connect_error_reports reconnect_error_reports websocket ws mqtt server_tags
server_metadata feature_flags default_js_domain ocsp_cache no_fast_producer_stall
max_closed_clients proxies
""".split()
"""Every directive of the real server's outermost block."""

TAKEN = {
    "json": '{"port": 4333, "authorization": {"users": [{"user": "a", "password": "b"}]}}',
    "styles": "port=4333; host 127.0.0.1, debug: true\ntrace\nno\n",
    "comments": "# one\nport: 1 # two\n// three\nhost: x // four\n",
    "sizes": "max_payload: 1MB\nmax_pending: 64Mib\nmax_control_line: 2k\nmax_connections: 100\n",
    "durations": 'ping_interval: "90s"\nwrite_deadline: "2s"\nlame_duck_duration: "1m"\n',
    "listen": "listen: 127.0.0.1:4333\nhttp: localhost:8333\n",
    "listen on a port": "listen: 4333",
    "listen with quotes": 'listen: "0.0.0.0:4333"',
    "listen on ipv6": 'listen: "[::1]:4333"',
    "variables": "PORT: 4333\nport: $PORT\n",
    "variables in blocks": "pw: x\nauthorization { user: a, password: $pw }\n",
    "environment": "port: $NET_TEST_PORT",
    "include": "include ./included.conf\nmax_payload: 2MB\n",
    "include in a block": "authorization { include 'users.conf' }",
    "block string": "server_metadata { note (\nlong\n)\n}\n",
    "raw password": "authorization { user: a, password: '#x,y{' }",
    "bcrypt": "authorization { user: a, pass: $2a$11$PWIFAL8RsWyGI3jVZtO9Nu8.6jOxzxfZo7c/W0eLk0 }",
    "arrays without commas": (
        "authorization { users = [\n {user: a, password: x}\n {user: b, password: y}\n ] }"
    ),
    "permissions": (
        "authorization { default_permissions { publish: [a, b.>], subscribe: {deny: c} }\n"
        "users = [ {user: a, pass: x, permissions { pub { allow: 'x.*', deny: [x.y] },"
        " sub: 'q.> grp', allow_responses { max: 5, expires: '1m' } } } ] }"
    ),
    "token": "authorization { token: abc, timeout: 3 }",
    "jetstream": "jetstream: enabled\nstore_dir: '/tmp/x'\n",
    "jetstream block": "jetstream { store_dir: '/tmp/x', max_mem: 1G, max_file: 10GB, domain: d }",
    "jetstream sync": "jetstream { store_dir: '/tmp/x', sync_interval: always }",
    "encryption": "jetstream { store_dir: '/tmp/x', key: secret }",
    "encryption by other names": (
        "secret: abc\njetstream { store_dir: '/tmp/x', ek: $secret, cipher: AES, prev_ek: old }"
    ),
    "encryption by long names": (
        "jetstream { store_dir: '/tmp/x', encryption_key: a, prev_encryption_key: b\n"
        " cipher: chacha }"
    ),
    "a cipher without a key": "jetstream { store_dir: '/tmp/x', cipher: chachapoly }",
    "an empty key": "jetstream { store_dir: '/tmp/x', key: '' }",
    "websocket": "websocket { port: 8333, no_tls: true, compression: true, same_origin: true }",
    "websocket headers": "websocket { listen: 'a:8333', no_tls: true, headers { X-A: b } }",
    "tls": "tls { cert_file: CERT, key_file: KEY, ca_file: CA, verify: true, timeout: 5 }",
    "tls first": "tls { cert_file: CERT, key_file: KEY, handshake_first: auto }\nallow_non_tls: on",
    "websocket tls": "ws { port: 1, tls { cert_file: CERT, key_file: KEY } }",
    "https": "tls { cert_file: CERT, key_file: KEY }\nhttps_port: 8443\n",
    "log": "log_file: /tmp/x\nlogtime: false\nlog_size_limit: 10MB\npid_file: /tmp/y\n",
    "tags": "server_tags: ['a:b', c]\nserver_name: x\nmax_subs: 10\n",
    "a single tag": "server_tags: a",
    "accounts": "accounts { A { users = [ {user: a, password: b} ] }, B {} }\nno_auth_user: a",
    "resolver by a URL": 'resolver: URL("http://127.0.0.1:9/accounts/")',
    "resolver by a URL without quotes": "resolver: url(http://127.0.0.1:9/accounts)",
    "resolver that is a cache": "resolver: { type: cache, dir: x, ttl: '1h', limit: 10 }",
    "traces": "accounts { A { msg_trace: a.b }, B { trace_dest: { dest: x, sampling: 7 } } }",
    "traces of a share": "accounts { A { msg_trace: { dest: a.b, sampling: '7%' } } }",
    "traces of what is shared": (
        "accounts { A { exports: [ {service: s, allow_trace: true}, {stream: t} ] },"
        " B { imports: [ {stream: {account: A, subject: t}, allow_trace: true} ] } }"
    ),
    "only listening for others": (
        "leafnodes { listen: '127.0.0.1:-1' }\ncluster { name: c, listen: '127.0.0.1:-1' }"
    ),
    "a password as a variable": (
        "authorization { PASS: x\n users = [ {user: a, password: $PASS}, {user: b, pass: $PASS} ] }"
    ),
    "tls of a proxy": "tls {}\nallow_non_tls: true",
    "tls of a proxy with more": "tls { timeout: 3, verify: true }\nallow_non_tls: true",
    "cipher suites": (
        "tls { cert_file: CERT, key_file: KEY, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,"
        " TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384] }"
    ),
    "insecure cipher suites": (
        "tls { cert_file: CERT, key_file: KEY, allow_insecure_cipher_suites: true\n"
        " cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA, TLS_RSA_WITH_RC4_128_SHA] }"
    ),
    "the usual payload": "max_payload: 0",
    "all of a cluster": (
        "cluster { name: c, host: a, port: 1, authorization { user: a, password: b }, routes: [],"
        " cluster_advertise: 'a:1', no_advertise: true, connect_retries: 3, connect_backoff: true\n"
        " permissions {}, pool_size: 3, accounts: [A], compression: s2_fast, ping_interval: '5s'\n"
        " ping_max: 2, write_deadline: '5s' }\naccounts { A {} }"
    ),
    "all of a gateway": (
        "gateway { name: g, net: a, port: 7222, advertise: 'a:1', connect_retries: 2, gateways: [],"
        " reject_unknown_cluster: true }"
    ),
    "all of the limits": (
        "jetstream { store_dir: '/tmp/x', limits { max_ack_pending: 1, max_ha_assets: 1,\n"
        " max_request_batch: 1, duplicate_window: '1m', batch: {} } }"
    ),
    "all of leaf nodes": (
        "leafnodes { listen: 7422, advertise: 'a:1', no_advertise: true, compression: true\n"
        " reconnect_interval: '1s', remotes: [], isolate: true, min_version: '2.10.0' }"
    ),
    "tuning": "prof_port: 6000\nmax_traced_msg_len: 10\nno_sublist_cache: true\n",
    "off all the same": "proxy_protocol: false\nsyslog: false\n",
}

NOT_TAKEN = {
    "nothing": "",
    "nothing but words": "# port: 4222\n",
    "unknown": "prot: 1",
    "unknown in a block": "authorization { usr: a }",
    "unknown in tls": "tls { cert_file: CERT, key_file: KEY, certfile: x }",
    "unknown in websocket": "websocket { port: 1, no_tls: true, prot: 2 }",
    "unclosed": "authorization { token: a",
    "missing value": "port:",
    "missing variable": "port: $NET_TEST_NO_SUCH",
    "missing include": "include 'nowhere.conf'",
    "not a number": "port: abc",
    "not a cipher": "jetstream { store_dir: '/tmp/x', cipher: rot13, key: a }",
    "not a boolean": "debug: 1",
    "not an address": "listen: a",
    "no certificate": "tls { cert_file: '/nowhere', key_file: KEY }",
    "certificate and key of different pairs": "tls { cert_file: CERT, key_file: OTHER }",
    "both kinds of user": "authorization { user: a, password: b, users = [{user: c, pass: d}] }",
    "token and users": "authorization { token: a, users = [ {user: b, password: c} ] }",
    "a cache that deletes": "resolver: { type: cache, dir: x, allow_delete: true }",
    "a full store that forgets": "resolver: { type: full, dir: x, ttl: '1h' }",
    "a resolver of another kind": "resolver: { type: half, dir: x }",
    "a cache without a place": "resolver: { type: cache }",
    "traces to a pattern": "accounts { A { msg_trace: 'a.*' } }",
    "traces of too many": "accounts { A { msg_trace: { dest: a, sampling: 101 } } }",
    "traces of none": "accounts { A { msg_trace: { dest: a, sampling: 0 } } }",
    "traces unknown": "accounts { A { msg_trace: { dest: a, share: 10 } } }",
    "traces of an exported stream": (
        "accounts { A { exports: [ {stream: s, allow_trace: true} ] } }"
    ),
    "traces of an imported service": (
        "accounts { A { exports: [ {service: s} ] },"
        " B { imports: [ {service: {account: A, subject: s}, allow_trace: true} ] } }"
    ),
    "empty cipher suites": "tls { cert_file: CERT, key_file: KEY, cipher_suites: [] }",
    "empty curves": "tls { cert_file: CERT, key_file: KEY, curve_preferences: [] }",
    "insecure cipher suites": (
        "tls { cert_file: CERT, key_file: KEY, cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA] }"
    ),
    "unknown cipher suites": "tls { cert_file: CERT, key_file: KEY, cipher_suites: [TLS_NULL] }",
    "half a pair": "tls { cert_file: CERT }\nallow_non_tls: true",
    "a cluster's address": "cluster { listen: 'a:b:c' }",
    "a cluster's port": "cluster { port: abc }",
    "unknown in a cluster": "cluster { listen: '127.0.0.1:-1', prot: 1 }",
    "a cluster that is no block": "cluster: 7",
    "a gateway's address": "gateway { listen: x }",
    "unknown in a gateway": "gateway { name: g, port: 7222, foo: 1 }",
    "a gateway's list": "gateway { name: g, port: 7222, gateways: {} }",
    "not a boolean in leaf nodes": "leafnodes { listen: '127.0.0.1:-1', no_advertise: 7 }",
    "unknown in leaf nodes": "leafnodes { port: 7422, bogus: 1 }",
    "leaf nodes that are no block": "leafnodes: true",
    "unknown among the limits": ("jetstream { store_dir: '/tmp/x', limits { max_ha_asets: 1 } }"),
    "no number among the limits": (
        "jetstream { store_dir: '/tmp/x', limits { max_ack_pending: 'x' } }"
    ),
    "bad duration": "write_deadline: soon",
    "short lame duck": "lame_duck_duration: 5s\nlame_duck_grace_period: 1s",
}

FOUND_LATER = {
    "websocket without tls": "websocket { port: 8333 }",
    "bad origin": "websocket { port: 1, no_tls: true, allowed_origins: 'x' }",
    "https without a certificate": "https_port: 8443",
    "https of a proxy": "tls {}\nallow_non_tls: true\nhttps_port: 8443",
    "no such system account": "system_account: X\naccounts { A {} }",
    "no such port": "port: 99999",
    "tls for all without a certificate": "tls {}",
    "websocket tls without a certificate": "websocket { port: 1, tls {} }",
    "a password of nobody": "authorization { password: x }",
    "no limit of the payload": "max_payload: -1",
    "no such no_auth_user": "no_auth_user: z\nauthorization { users = [ {user: a, pass: b} ] }",
}
"""
What the real server's check lets pass.

Its start does not, or it serves nobody by TLS, everybody without the password, or any payload.
"""

REFUSED = {
    "routes": ("cluster { listen: '127.0.0.1:-1', routes: ['nats://x:6222'] }", "`cluster.routes`"),
    "remotes": ("leafnodes { remotes: [ {url: 'nats://x:7422'} ] }", "`leafnodes.remotes`"),
    "gateways": (
        "gateway { name: a, port: 7222, gateways: [ {name: b, url: 'nats://x:7222'} ] }",
        "`gateway.gateways`",
    ),
    "mqtt": ("server_name: x\nmqtt { port: 1883 }\njetstream: on", "`mqtt`"),
    "proxies": ("proxies { trusted = [] }", "`proxies`"),
    "no system account": ("no_sys_acc: true", "`no_sys_acc`"),
}
"""What the real server takes and ours cannot."""


class Files:
    """Files next to each other, with the certificates that some of them name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        pair, other = Authority(directory).server(), Authority(directory, "other").server("another")
        self._names = {
            "CERT": str(pair.cert),
            "KEY": str(pair.key),
            "CA": str(directory / "authority.pem"),
            "OTHER": str(other.key),
        }
        (directory / "included.conf").write_text("port: 4333\ninclude 'deeper.conf'\n")
        (directory / "deeper.conf").write_text("ping_max: 3\n")
        (directory / "users.conf").write_text("users = [ {user: a, password: b} ]\n")

    def write(self, text: str) -> str:
        """Write a file and return its path."""
        for name, path in self._names.items():
            text = text.replace(f": {name}", f': "{path}"')
        path = self._directory / "server.conf"
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True)
def port_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NET_TEST_PORT", "4333")


def real_check(path: str) -> tuple[bool, str]:
    """Return whether the real server takes a file, and what it says."""
    command = [*NATS_SERVER.command, "-t", "-c", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def own_check(path: str, capsys: pytest.CaptureFixture[str]) -> tuple[bool, str]:
    """Return whether ours does, and what it says."""
    return main(["serve", "-t", "-c", path]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN)
def test_both_take_it(text: str, files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    path = files.write(text)

    assert real_check(path)[0], real_check(path)[1]
    taken, said = own_check(path, capsys)
    assert taken, said


@pytest.mark.parametrize("text", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_neither_takes_it(text: str, files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    path = files.write(text)

    assert not real_check(path)[0]
    assert not own_check(path, capsys)[0]


@pytest.mark.parametrize("text", FOUND_LATER.values(), ids=FOUND_LATER)
def test_ours_finds_it_out_before_the_start(
    text: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files.write(text)

    assert real_check(path)[0]
    assert not own_check(path, capsys)[0]


@pytest.mark.parametrize(("text", "named"), REFUSED.values(), ids=REFUSED)
def test_what_one_server_cannot_have_is_refused_by_name(
    text: str, named: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files.write(text)

    assert real_check(path)[0]
    taken, said = own_check(path, capsys)
    assert not taken
    assert f"{path}:" in said
    assert f"{named} is not supported: " in said


def test_what_has_no_effect_is_told_with_its_place(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files.write("port: 1\nleafnodes { port: 7422 }\n")

    _, said = own_check(path, capsys)

    assert f"penstock: warning: {path}:2:1: `leafnodes` has no effect: " in said


def test_every_directive_of_the_real_server_is_known() -> None:
    known = {*DIRECTIVES, *ALIASES, *BLOCKS, *BLOCK_ALIASES, *IGNORED, *UNSUPPORTED}

    assert set(OF_NATS_SERVER) - known == set()


def test_the_real_server_knows_every_directive_too(files: Files) -> None:
    named = {*DIRECTIVES, *ALIASES, *BLOCKS, *BLOCK_ALIASES, *IGNORED, *UNSUPPORTED}
    outermost = sorted({*named, *OF_NATS_SERVER} - {name for name in named if "." in name})
    path = files.write("\n".join(f"{name}: [1]" for name in outermost))

    _, said = real_check(path)

    assert "unknown field" not in said
