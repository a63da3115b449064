"""Where a server listens on a machine that has both families of addresses, or one."""

import errno
import socket

import pytest

from penstock.errors import ConfigError
from penstock.net.listeners.listener import listening_socket

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")


def reaches(address: str, listener: socket.socket) -> bool:
    try:
        socket.create_connection((address, listener.getsockname()[1])).close()
    except ConnectionRefusedError:
        return False
    return True


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", {"127.0.0.1", "::1"}),
        ("::", {"127.0.0.1", "::1"}),
        ("127.0.0.1", {"127.0.0.1"}),
        ("::1", {"::1"}),
        ("localhost", {"127.0.0.1"}),
    ],
)
def test_every_address_is_of_both_families_and_others_are_what_they_are(host, reached):
    with listening_socket(host, -1) as listener:
        assert reached == {each for each in ("127.0.0.1", "::1") if reaches(each, listener)}


@pytest.mark.parametrize("reason", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_ipv6_listens_on_ipv4(reason, monkeypatch):
    create_server = socket.create_server

    def without_ipv6(address, *, family, **options):
        if family == socket.AF_INET6:
            raise OSError(reason, "there is no IPv6")
        return create_server(address, family=family, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)

    with listening_socket("0.0.0.0", 0) as listener:
        assert reaches("127.0.0.1", listener)
    with pytest.raises(ConfigError, match=r"on port: \[::1\]:0, .*there is no IPv6"):
        listening_socket("::1", 0)


def test_a_system_that_cannot_do_both_listens_on_ipv4(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with listening_socket("0.0.0.0", 0) as listener:
        assert socket.AF_INET == listener.family


@needs_ipv6
@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_in_one_family_is_taken(taken):
    with listening_socket(taken, 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^Error listening on port: 0.0.0.0:{port}, "):
            listening_socket("0.0.0.0", port)
