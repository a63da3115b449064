"""
Measure how long honest clients wait while others read slowly, beside nats-server.

A publisher at full speed fills the queues of readers that are slow or read nothing; a
disconnected reader reconnects at once. In the meantime three honest clients measure their
round trips: one that pings, one that makes requests, and one that publishes to the busy
subject now and then. Run it with `make bench-fairness`.
"""

import multiprocessing
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import median
from threading import Event, Thread

from benchmarks.command import add_servers, begin, both_servers, chosen, command_line, write_json
from penstock.bench.report.machine import Meter
from penstock.bench.report.ratios import OURS, THEIRS
from penstock.bench.scenarios.turns import in_turns, say
from penstock.errors import PenstockError
from penstock.net.process import HOST, Program, ServerProcess
from penstock.protocol.tables import markdown

SECONDS = 4.0
QUICK_SECONDS = 1.5
PAUSE_S = 0.002
WAIT_S_MAX = 30.0
CONNECT = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
FLOOR_S = 0.05
"""Shorter waits come from the scheduler, on a machine with fewer processors than programs."""


@dataclass(frozen=True)
class Case:
    """The slow readers, and the messages published to them."""

    name: str
    payload_bytes: int = 128
    readers: int = 1
    pace_bytes: int = 0
    """Bytes that a reader takes per second; 0: nothing at all."""
    interest: bytes = b"busy.>"
    subjects: int = 1
    publishers: int = 1


CASES = (
    Case("nobody reads slowly", readers=0),
    Case("reads nothing"),
    Case("reads 1 KB/s", pace_bytes=1024),
    Case("reads 1 MB/s", pace_bytes=1024 * 1024),
    Case("four read nothing", readers=4),
    Case("sixteen read 1 KB/s", readers=16, pace_bytes=1024),
    Case("reads nothing, 256 KB payloads", payload_bytes=256 * 1024),
    Case("reads 1 KB/s, 256 KB payloads", payload_bytes=256 * 1024, pace_bytes=1024),
    Case("reads nothing, empty payloads", payload_bytes=0),
    Case("reads 1 KB/s, empty payloads", payload_bytes=0, pace_bytes=1024),
    Case("reads nothing, over 1000 subjects", subjects=1000),
    Case("four read 1 KB/s of everything", readers=4, pace_bytes=1024, interest=b">"),
    Case("four read 1 MB/s of everything", readers=4, pace_bytes=1024 * 1024, interest=b">"),
    Case("reads 1 KB/s, four publishers", pace_bytes=1024, publishers=4),
)

WAITS = ("PONG", "request", "publish + PONG")
TITLES = (
    *("case", "wait", "ours, longest", "theirs, longest", "ratio"),
    *("ours, p99", "theirs, p99", "met", "others"),
)


@dataclass
class Waits:
    """Every round trip of one kind, on one server."""

    seconds: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    """The longest wait of each round; their median is compared."""

    def end_round(self, seconds: list[float]) -> None:
        """Add the round trips of a round."""
        self.seconds += seconds
        self.longest.append(max(seconds))

    @property
    def worst_s(self) -> float:
        """The longest wait of the median round."""
        return median(self.longest)


class Peer:
    """A plain socket that has sent CONNECT."""

    def __init__(self, port: int, *, receive_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(WAIT_S_MAX)
        self.sock.connect((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(CONNECT)
        self.round_trip(b"PING\r\n")

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def round_trip(self, data: bytes, end: bytes = b"PONG\r\n") -> None:
        """Send data, and return when the answer has arrived."""
        self.sock.sendall(data)
        self.wait_for(end)

    def wait_for(self, end: bytes) -> None:
        """Return when data that ends with `end` has arrived."""
        received = b""
        while not received.endswith(end):
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(received[-200:])
            received += data


def publish(port: int, data: bytes) -> None:
    """Publish the same bytes forever, as the body of a process."""
    peer = Peer(port)
    while True:
        peer.sock.sendall(data)


def read_slowly(port: int, case: Case, stop: Event) -> None:
    """Read at the pace of the case, and reconnect when disconnected, as the body of a thread."""
    while not stop.is_set():
        try:
            with closing(Peer(port, receive_buffer=16 * 1024)) as peer:
                peer.sock.sendall(b"SUB %b 1\r\n" % case.interest)
                _dawdle(peer, case.pace_bytes, stop)
        except (OSError, EOFError):
            continue


def _dawdle(peer: Peer, pace_bytes: int, stop: Event) -> None:
    hung_up = select.poll()
    hung_up.register(peer.sock, select.POLLRDHUP)
    pause_s = 0.02
    while not stop.wait(pause_s) and not hung_up.poll(0):
        if pace_bytes and not peer.sock.recv(int(pace_bytes * pause_s)):
            return


def measure(port: int, case: Case, seconds: float) -> list[list[float]]:
    """Return the round trips of the honest clients, one list for each kind."""
    with ExitStack() as stack:
        honest = [stack.enter_context(closing(Peer(port))) for _ in range(4)]
        trips = _round_trips(*honest)
        stop = Event()
        readers = [Thread(target=read_slowly, args=(port, case, stop)) for _ in range(case.readers)]
        publishers = [_publisher(port, case) for _ in range(case.publishers)]
        for each in (*readers, *publishers):
            each.start()
        try:
            return _probe(trips, seconds)
        finally:
            stop.set()
            for publisher in publishers:
                publisher.kill()
            for each in (*readers, *publishers):
                each.join()


def _publisher(port: int, case: Case) -> multiprocessing.Process:
    line = b"PUB busy.%d %d\r\n%b\r\n"
    payload = b"x" * case.payload_bytes
    messages = [line % (each, len(payload), payload) for each in range(case.subjects)]
    data = b"".join(messages)
    data *= max(65536 // len(data), 1)
    return multiprocessing.Process(target=publish, args=(port, data), daemon=True)


def _round_trips(
    pinger: Peer, asker: Peer, service: Peer, teller: Peer
) -> list[Callable[[], None]]:
    asker.round_trip(b"SUB inbox 1\r\nPING\r\n")
    service.round_trip(b"SUB service 1\r\nPING\r\n")

    def ask() -> None:
        asker.sock.sendall(b"PUB service inbox 2\r\nhi\r\n")
        service.wait_for(b"hi\r\n")
        service.sock.sendall(b"PUB inbox 2\r\nho\r\n")
        asker.wait_for(b"ho\r\n")

    return [
        lambda: pinger.round_trip(b"PING\r\n"),
        ask,
        lambda: teller.round_trip(b"PUB busy.0 2\r\nhi\r\nPING\r\n"),
    ]


def _probe(trips: Sequence[Callable[[], None]], seconds: float) -> list[list[float]]:
    waits: list[list[float]] = [[] for _ in trips]
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for trip, kept in zip(trips, waits, strict=True):
            start_s = time.monotonic()
            trip()
            kept.append(time.monotonic() - start_s)
        time.sleep(PAUSE_S)
    return waits


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 2 if a server is missing."""
    parser = command_line(
        "benchmarks.fairness", __doc__, quick="run one short round of each case", only="cases"
    )
    add_servers(parser)
    options = begin(parser, arguments)
    seconds = QUICK_SECONDS if options.quick else SECONDS
    lines: list[list[str]] = []
    try:
        programs = both_servers(options)
        for case in chosen(CASES, options):
            say(case.name)
            lines += _lines(case, programs, seconds, options.rounds)
    except PenstockError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
    print(markdown(TITLES, lines, left=len(TITLES)))
    write_json(options, [dict(zip(TITLES, line, strict=True)) for line in lines])
    return 0


def _lines(
    case: Case, programs: Sequence[Program], seconds: float, rounds: int
) -> Iterator[list[str]]:
    waits = {program.name: [Waits() for _ in WAITS] for program in programs}
    others: list[float] = []
    for program in in_turns(programs, rounds):
        with ServerProcess(program, own_session=True) as server:
            with Meter(lambda: server.cpu_s) as meter:
                trips = measure(server.port, case, seconds)
        others.append(meter.others_share)
        for kept, seconds_each in zip(waits[program.name], trips, strict=True):
            kept.end_round(seconds_each)
    for name, ours, theirs in zip(WAITS, waits[OURS], waits[THEIRS], strict=True):
        yield _line(case, name, ours, theirs, max(others))


def _line(case: Case, name: str, ours: Waits, theirs: Waits, others_share: float) -> list[str]:
    is_met = ours.worst_s <= max(theirs.worst_s, FLOOR_S)
    return [
        case.name,
        name,
        _ms(ours.worst_s),
        _ms(theirs.worst_s),
        f"{ours.worst_s / theirs.worst_s:.2f}",
        _ms(_percentile(ours.seconds, 0.99)),
        _ms(_percentile(theirs.seconds, 0.99)),
        "yes" if is_met else "no",
        f"{others_share:.0%}",
    ]


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
