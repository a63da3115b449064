"""
Measure what a connection, a subscription, a stream, a consumer and a message cost in memory.

Each is added many times to a new server, ours and nats-server in turns; the growth of the
resident memory, divided by their number, is the price of one. `make bench-sizes` prints the
table of docs/operate/sizing.md. Noise of other processes does not matter much here.
"""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from benchmarks.command import add_servers, begin, both_servers, command_line, write_json
from benchmarks.requests import Client, create_consumer, create_stream, request
from penstock.bench.report import machine
from penstock.bench.report.ratios import COMPARED, Figures, Goal, RatioRow, both, failures, table
from penstock.bench.scenarios.turns import take_turns
from penstock.net.process import HOST, Program, ServerProcess

QUICK_DIVISOR = 10
CONNECTIONS, SUBSCRIPTIONS, STREAMS, CONSUMERS, MESSAGES = 2_000, 200_000, 1_000, 5_000, 1_000_000
CONSUMED = 50
"""The number of streams that have the consumers: nats-server allows each of them 1,000."""
PORTION = 10_000
SETTLE_S = 0.5
PAYLOAD = bytes(128)
CONNECT = b'CONNECT {"verbose":false}\r\n'
PING, PONG = b"PING\r\n", b"PONG\r\n"
GOAL = Goal("bytes each", 1.0, "B")
COLUMNS = (*COMPARED, ("on disk, bytes each", both("disk", 0)))

Add = Callable[[ServerProcess, int, ExitStack], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a server refused something."""
    parser = command_line("benchmarks.sizes", __doc__, quick="a tenth of each, one round")
    add_servers(parser)
    options = begin(parser, arguments)
    programs = both_servers(options)
    divisor = QUICK_DIVISOR if options.quick else 1
    print(f"{time.strftime('%Y-%m-%d %H:%M %Z')}, {machine.describe()}\n")
    rows = []
    for name, (add, count) in WORKS.items():
        rows.append(RatioRow(f"{name}, of {count // divisor:,}", GOAL))
        take_turns(
            rows[-1:],
            programs,
            options.rounds,
            lambda each, add=add, count=count // divisor: _measure(each, add, count),
        )
    print(table("one more", COLUMNS, rows))
    write_json(options, [row.as_json() for row in rows])
    return int(bool(failures(rows)))


def _measure(program: Program, add: Add, count: int) -> Figures:
    """Return what one costs: the growth, divided by their number."""
    server = ServerProcess(program, "jetstream { store_dir: store }\n", own_session=True)
    with server, ExitStack() as stack:
        used, stored = _sizes(server)
        add(server, count, stack)
        more_used, more_stored = _sizes(server)
    return {"bytes each": (more_used - used) / count, "disk": (more_stored - stored) / count}


def _sizes(server: ServerProcess) -> tuple[int, int]:
    """Return the resident memory and the bytes on disk, once the memory no longer changes."""
    before = -1
    while (now := server.resident_bytes) != before:
        before = now
        time.sleep(SETTLE_S)
    store = (server.directory / "store").rglob("*")
    return now, sum(path.stat().st_size for path in store if path.is_file())


def _connections(server: ServerProcess, count: int, stack: ExitStack) -> None:
    for _ in range(count):
        _Peer(server.port, stack).settle()


def _subscriptions(server: ServerProcess, count: int, stack: ExitStack) -> None:
    peer = _Peer(server.port, stack)
    for start in range(0, count, PORTION):
        peer.send(b"".join(b"SUB device.%d %d\r\n" % (n, n) for n in range(start, start + PORTION)))
        peer.settle()


def _streams(server: ServerProcess, count: int, stack: ExitStack) -> None:
    client = stack.enter_context(Client(server.port))
    client.ask([create_stream(number) for number in range(count)])


def _consumers(server: ServerProcess, count: int, stack: ExitStack) -> None:
    client = stack.enter_context(Client(server.port))
    client.ask([create_stream(number) for number in range(CONSUMED)])
    client.ask([create_consumer(number % CONSUMED, number) for number in range(count)])


def _messages(server: ServerProcess, count: int, stack: ExitStack, subjects: int = 1) -> None:
    client = stack.enter_context(Client(server.port))
    client.ask([request("STREAM.CREATE.M", {"name": "M", "subjects": ["m.*"]})])
    line = b"PUB m.%d r %d\r\n%s\r\n"
    for start in range(0, count, PORTION):
        numbers = range(start, start + PORTION)
        client.ask([line % (n % subjects, len(PAYLOAD), PAYLOAD) for n in numbers])


def _keys(server: ServerProcess, count: int, stack: ExitStack) -> None:
    _messages(server, count, stack, subjects=count)


class _Peer:
    """A client of core NATS."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._socket = stack.enter_context(socket.create_connection((HOST, port), timeout=60))
        self.send(CONNECT)

    def send(self, data: bytes) -> None:
        """Send as much as there is."""
        self._socket.sendall(data)

    def settle(self) -> None:
        """Return once the server has done all of it."""
        self.send(PING)
        read = b""
        while not read.endswith(PONG):
            read += self._socket.recv(1 << 16)


WORKS: dict[str, tuple[Add, int]] = {
    "connection": (_connections, CONNECTIONS),
    "subscription, a subject each": (_subscriptions, SUBSCRIPTIONS),
    "stream in files": (_streams, STREAMS),
    "durable consumer": (_consumers, CONSUMERS),
    "message of 128 B": (_messages, MESSAGES),
    "message of 128 B, a subject each": (_keys, MESSAGES),
}


if __name__ == "__main__":
    sys.exit(main())
