"""Server URLs, and the order in which servers are tried."""

from __future__ import annotations

import pytest

from penstock.client.connection.servers import (
    DISCOVERED_MAX,
    Server,
    ServerPool,
    parse_url,
    split_urls,
)
from penstock.errors import ConfigError

A, B, C = (Server(host=name) for name in "abc")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://h", Server(host="h", port=4222)),
        ("h:1", Server(host="h", port=1)),
        ("tls://h:1", Server(host="h", port=1, tls=True)),
        ("nats://u:p@h", Server(host="h", user="u", password="p")),
        ("nats://u:@h", Server(host="h", user="u", password="")),
        ("nats://t%40k@h", Server(host="h", token="t@k")),
        ("nats://u%3A:p%2F%40@h", Server(host="h", user="u:", password="p/@")),
        ("nats://[::1]:1", Server(host="::1", port=1)),
        (" nats://h ", Server(host="h")),
    ],
)
def test_a_url_says_where_and_who(url: str, expected: Server) -> None:
    assert expected == parse_url(url)


@pytest.mark.parametrize("url", ["", "nats://", "ws://h", "nats://h:port", "nats://h:99999"])
def test_what_is_no_url_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=f"`{url}` is not a server URL"):
        parse_url(url)


def test_an_address_of_version_6_has_brackets() -> None:
    assert "[::1]:4222" == Server(host="::1").address


@pytest.mark.parametrize(
    "servers", ["nats://a,nats://b", " nats://a , nats://b ,", ["nats://a", "nats://b"]]
)
def test_several_urls_are_a_list_or_have_commas(servers: str | list[str]) -> None:
    assert ("nats://a", "nats://b") == split_urls(servers)


def pool(*servers: Server, attempts_max: int = -1) -> ServerPool:
    return ServerPool(servers, attempts_max=attempts_max, randomize=False)


def test_the_server_in_use_is_tried_last() -> None:
    servers = pool(A, B, C)
    servers.connected(A)

    assert (B, C, A) == servers.servers


def test_a_server_that_failed_waits_for_the_others() -> None:
    servers = pool(A, B, C)
    servers.failed(A)

    assert (B, C, A) == servers.servers


def test_a_server_is_given_up_after_its_last_attempt() -> None:
    servers = pool(A, B, attempts_max=2)
    servers.failed(A)
    servers.failed(A)

    assert (B,) == servers.servers


def test_a_success_forgives_earlier_failures() -> None:
    servers = pool(A, attempts_max=2)
    servers.failed(A)
    servers.connected(A)
    servers.failed(A)

    assert (A,) == servers.servers


def test_a_server_that_refuses_us_twice_is_given_up() -> None:
    servers = pool(A, B)
    servers.failed(A, refused=True)
    assert 2 == len(servers)
    servers.failed(A, refused=True)

    assert (B,) == servers.servers


def test_discovered_servers_come_before_the_one_in_use() -> None:
    servers = pool(A)
    servers.connected(A)

    assert servers.discovered(["b:4222", "a:4222"], via=A)
    assert ["b", "a"] == [server.host for server in servers.servers]
    assert not servers.discovered(["b:4222", "a:4222"], via=A)


def test_a_discovered_server_is_reached_as_the_one_that_named_it() -> None:
    via = Server(host="name", tls=True, user="u", password="p")
    servers = pool(via)
    servers.discovered(["10.0.0.1:4222"], via=via)

    found = servers.servers[0]
    assert ("10.0.0.1", True, "name", "u", "p") == (
        found.host,
        found.tls,
        found.tls_hostname,
        found.user,
        found.password,
    )


def test_servers_that_left_the_cluster_are_forgotten_but_not_those_we_were_told_of() -> None:
    servers = pool(A, B)
    servers.connected(A)
    servers.discovered(["c:4222"], via=A)
    servers.discovered(["d:4222"], via=A)

    assert {"a", "b", "d"} == {server.host for server in servers.servers}


def test_what_is_no_address_is_left_out_of_what_a_server_names() -> None:
    via = Server(host="a")
    pool = ServerPool([via], randomize=False)
    garbage = [
        "",
        "://",
        "b:99999",
        "b c:1",
        "b\0:1",
        "\ud800:1",
        "ftp://b",
        5,
        None,
        ["b"],
        "[::1",
    ]

    assert pool.discovered([*garbage, "b:1"], via=via)
    assert ["b:1", "a:4222"] == [server.address for server in pool.servers]


def test_a_server_may_name_so_many_others_and_no_more() -> None:
    via = Server(host="a")
    pool = ServerPool([via])
    pool.discovered([f"host-{number}:4222" for number in range(10_000)], via=via)

    assert DISCOVERED_MAX + 1 == len(pool)


def test_tls_that_was_spoken_is_demanded_of_all_servers() -> None:
    first, second = Server(host="a"), Server(host="b")
    pool = ServerPool([first, second], randomize=False)
    via = pool.connected(first, encrypted=True)
    pool.discovered(["c:1"], via=via)

    assert via.tls
    assert all(server.tls for server in pool.servers)
