"""Real nats-servers that know each other, with JetStream."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing

from tests.servers import HOST, NATS_SERVER, ServerProcess

NODES = 3
"""The fewest that can lose one."""


def cluster_of(nodes: int, stack: ExitStack, config: str = "") -> list[ServerProcess]:
    """Start so many servers, alive as long as the stack is open."""
    ports = _free_ports(nodes)
    routes = ", ".join(f'"nats://{HOST}:{port}"' for port in ports)
    return [
        stack.enter_context(
            ServerProcess(
                NATS_SERVER,
                f"{config}\nserver_name: n{number}\njetstream {{ store_dir: store }}\n"
                f'cluster {{ name: trio, listen: "{HOST}:{port}", routes: [ {routes} ] }}',
            )
        )
        for number, port in enumerate(ports)
    ]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
