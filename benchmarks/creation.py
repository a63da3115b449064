"""
Measure how long it takes to create many streams and consumers, beside nats-server.

Both servers take turns, each time with a new process and an empty store. One raw client keeps
many requests in flight. Run it with `make bench-creation` on a quiet machine.
"""

import json
import socket
import sys
import time
from collections.abc import Sequence

from benchmarks.command import add_servers, begin, both_servers, command_line, write_json
from benchmarks.loads import LoadFailed
from penstock.bench.report import machine
from penstock.bench.report.machine import Meter
from penstock.bench.report.ratios import COMPARED, Figures, Goal, Row, both, failures, table
from penstock.bench.scenarios.turns import take_turns
from penstock.net.process import HOST, Program, ServerProcess

STREAMS, CONSUMERS = 2_000, 5_000
CONSUMED = 100
"""The number of streams that have the consumers: nats-server allows each of them 1,000."""
QUICK_DIVISOR = 5
WINDOW = 500
"""The number of requests in flight."""
READ_BYTES = 1 << 20
WAIT_S = 60
GOAL = Goal("created/s", 1.0, "/s")
COLUMNS = (*COMPARED, ("CPU µs each", both("cpu_us", 0)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a creation failed."""
    parser = command_line("benchmarks.creation", __doc__, quick="create a fifth, one round")
    add_servers(parser)
    options = begin(parser, arguments)
    programs = both_servers(options)
    divisor = QUICK_DIVISOR if options.quick else 1
    streams, consumers = STREAMS // divisor, CONSUMERS // divisor
    print(f"{time.strftime('%Y-%m-%d %H:%M %Z')}, {machine.describe()}\n")
    works = {
        f"{streams:,} streams": lambda each: _streams(each, streams),
        f"{consumers:,} consumers": lambda each: _consumers(each, consumers),
    }
    rows = []
    for name, work in works.items():
        rows.append(Row(name, GOAL))
        take_turns(rows[-1:], programs, options.rounds, work)
    print(table("work", COLUMNS, rows))
    write_json(options, [row.as_json() for row in rows])
    return int(bool(failures(rows)))


def _streams(program: Program, count: int) -> Figures:
    with _server(program) as server, _Client(server.port) as client:
        return _measure(server, client, [_stream(number) for number in range(count)])


def _consumers(program: Program, count: int) -> Figures:
    with _server(program) as server, _Client(server.port) as client:
        client.ask([_stream(number) for number in range(CONSUMED)])
        return _measure(server, client, [_consumer(n % CONSUMED, n) for n in range(count)])


def _server(program: Program) -> ServerProcess:
    return ServerProcess(program, "jetstream { store_dir: store }\n", own_session=True)


def _measure(server: ServerProcess, client: "_Client", requests: Sequence[bytes]) -> Figures:
    with Meter(lambda: server.cpu_s) as meter:
        client.ask(requests)
    return {
        "created/s": len(requests) / meter.wall_s,
        "cpu_us": meter.cpu_s / len(requests) * 1e6,
        "others": meter.others_share,
    }


def _stream(number: int) -> bytes:
    config = {"name": f"S{number}", "subjects": [f"s.{number}.>"], "storage": "file"}
    return _request(f"STREAM.CREATE.S{number}", config)


def _consumer(stream: int, number: int) -> bytes:
    config = {"durable_name": f"C{number}", "name": f"C{number}", "ack_policy": "explicit"}
    document = {"stream_name": f"S{stream}", "config": config, "action": "create"}
    return _request(f"CONSUMER.CREATE.S{stream}.C{number}", document)


def _request(call: str, document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"PUB $JS.API.%s r %d\r\n%s\r\n" % (call.encode(), len(body), body)


class _Client:
    """One connection that takes as little of the processor as Python can."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=WAIT_S)
        self._socket.sendall(b'CONNECT {"verbose":false}\r\nSUB r 1\r\n')

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, requests: Sequence[bytes]) -> None:
        """Send requests, `WINDOW` in flight, and wait for an answer to each."""
        sent = answered = 0
        rest = b""
        while answered < len(requests):
            if room := min(WINDOW - (sent - answered), len(requests) - sent):
                self._socket.sendall(b"".join(requests[sent : sent + room]))
                sent += room
            read = self._socket.recv(READ_BYTES)
            if not read or b'"error":' in rest + read:
                raise LoadFailed(f"refused: {(rest + read)[-500:].decode(errors='replace')}")
            answered += (rest + read).count(b"MSG r 1 ") - rest.count(b"MSG r 1 ")
            rest = (rest + read)[-8:]


if __name__ == "__main__":
    sys.exit(main())
