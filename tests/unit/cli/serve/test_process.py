"""What the process around a server tells others."""

import socket

import pytest

from penstock.cli.serve.process import ports
from penstock.config.server import ServerConfig
from penstock.net.server import Server


def server(**settings):
    made = Server(ServerConfig(**settings))
    made.port, made.http_port = 4222, settings.get("http_port")
    return made


def test_ports_are_urls():
    expected = {"nats": ["nats://127.0.0.1:4222"], "monitoring": ["http://127.0.0.1:8222"]}

    assert expected == ports(server(host="127.0.0.1", http_port=8222))


def test_an_ipv6_address_is_in_brackets():
    assert {"nats": ["nats://[::1]:4222"]} == ports(server(host="::1"))


def test_a_server_on_all_addresses_is_reached_on_the_loopback_first():
    assert "nats://127.0.0.1:4222" == ports(server())["nats"][0]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_server_on_all_addresses_is_reached_over_ipv6_too(host):
    assert "nats://[::1]:4222" in ports(server(host=host))["nats"]
