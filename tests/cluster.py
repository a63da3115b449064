"""Real nats-servers that know each other, with JetStream."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from tests.servers import HOST, NATS_SERVER, START_S, ServerProcess

import penstock
from penstock.errors import PenstockError
from penstock.net.process import free_ports

NODES = 3
"""The fewest that can lose one."""


def cluster_of(nodes: int, stack: ExitStack, config: str = "") -> list[ServerProcess]:
    """Start so many servers, alive as long as the stack is open."""
    ports = free_ports(nodes)
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


async def elected(url: str) -> None:
    """Return once a stream can be made on all servers of a cluster."""
    async with asyncio.timeout(START_S), await penstock.connect(url) as client:
        streams = client.jetstream(request_timeout_s=1.0).streams
        while True:
            try:
                await streams.create("ready", subjects=["ready"], num_replicas=NODES)
                await streams.delete("ready")
                return
            except PenstockError:
                await asyncio.sleep(0.1)
