"""
Measure every compiled twin beside its Python form, and print the gain.

Both run in this process, in turns, on the same arguments; processor time counts, so that
other load on the machine hardly matters. A twin stays if it gains enough: see `GAIN_MIN`.
Run it with `make bench-twins`.
"""

import importlib
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from benchmarks.command import begin, chosen, command_line, write_json
from penstock.bench.report import machine
from penstock.bench.report.ratios import (
    OURS,
    THEIRS,
    Figures,
    Goal,
    RatioRow,
    table,
    value_of,
    verdict,
)
from penstock.bench.scenarios.turns import take_turns
from penstock.hot import answers, consuming, deliveries, fanout, outbox, records, s2, wire
from penstock.protocol import wellknown

GAIN_MIN = 1.3
"""The least gain for which a function is written twice."""
SECONDS, QUICK_SECONDS = 0.2, 0.02
MESSAGES = 500
LIMITS = (1 << 20, 4096)
ACKS = wellknown.ACK.encode() + b"ORDERS.worker."
TIME_NS = 1_700_000_000_000_000_000

Call = Callable[[], Any]


@dataclass(frozen=True)
class Twin:
    """One side: a name, and where its functions are."""

    name: str
    functions: dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A function of both twins, and how to make a call of it."""

    name: str
    make: Callable[[Twin], Call]


def works() -> list[Work]:
    """Return a work for each function that exists twice."""
    payload = b"x" * 128
    stored = [(n, TIME_NS + n, b"orders.%d" % (n % 50), b"", payload) for n in range(1, MESSAGES)]
    lines = b"".join(b"PUB orders.%d 128\r\n%b\r\n" % (n % 50, payload) for n in range(MESSAGES))
    publishes = wire.parse_commands(lines, *LIMITS)[0]
    acked = _acks(stored)
    delivered = consuming.encode_deliveries(stored, ACKS, 1, MESSAGES, b"7", 1)[0]
    entries = [(subject, b"", data, time_ns) for _, time_ns, subject, _, data in stored]
    run, lengths = records.encode_records(1, entries, 7)
    offsets = [sum(lengths[:index]) for index in range(len(lengths))]
    replies = [b"_INBOX.abc.%d" % n for n in range(MESSAGES)]
    block = _s2_block(run)
    return [
        _plain("parse_commands", lines, *LIMITS),
        _plain("parse_messages", delivered, *LIMITS),
        _plain("publish_totals", publishes, (b"$JS.", b"_R_.")),
        _plain("message_pieces", publishes),
        _plain("collect_deliveries", delivered, 3, 1, MESSAGES),
        _plain("have_prefix", acked, ACKS),
        _plain("plain_acks", acked, ACKS, 0),
        _plain("first_deliveries", stored, ACKS, 1, MESSAGES),
        _plain("encode_deliveries", stored, ACKS, 1, MESSAGES, b"7", 1),
        _plain("are_siblings", replies, b"_INBOX.abc"),
        _plain("numbered_answers", replies, b"1", b'{"stream":"ORDERS","seq":', b"}", 1),
        _plain("stored_answer", b"_INBOX.abc.1", b"ORDERS", stored[0]),
        _plain("plain_entries", publishes, TIME_NS),
        _plain("encode_records", 1, entries, 7),
        _plain("decode_messages", run, offsets, 0, 7),
        _plain("crc32c", run),
        _plain("decode_s2", block),
        Work("fan_out", _fan_out),
        Work("fan_out_each", _fan_out_each),
        Work("write_outbox", _write_outbox),
        Work("Outlet", _enqueue),
    ]


def twins() -> tuple[Twin, Twin]:
    """Return the compiled twin and the Python one."""
    compiled = importlib.import_module("penstock.hot._speedups")
    modules = (wire, deliveries, consuming, answers, records, s2, fanout, outbox)
    return Twin(OURS, _functions(compiled)), Twin(THEIRS, _functions(*modules))


def _functions(*modules: ModuleType) -> dict[str, Any]:
    return {name: value for module in modules for name, value in vars(module).items()}


def _plain(name: str, *arguments: Any) -> Work:
    def make(twin: Twin) -> Call:
        function = twin.functions[name]
        return lambda: function(*arguments)

    return Work(name, make)


def _acks(stored: Sequence[tuple[int, int, bytes, bytes, bytes]]) -> list[wire.Op]:
    sent = consuming.first_deliveries(stored, ACKS, 1, len(stored))
    return [(wire.PUB, reply, b"", 0, 4, b"+ACK\r\n") for _, _, reply, *_ in sent]


def _s2_block(data: bytes) -> bytes:
    """Return a block of literals and copies, 64 bytes each in turn."""
    size, length = len(data) // 128 * 128, b""
    left = size
    while left >= 0x80:
        length, left = length + bytes([left & 0x7F | 0x80]), left >> 7
    block = length + bytes([left])
    for start in range(0, size, 128):
        block += bytes([59 << 2]) + data[start : start + 60]
        block += bytes([63 << 2 | 2]) + b"\x3c\x00" + bytes([3 << 2 | 2]) + b"\x3c\x00"
    return block


def _receivers(twin: Twin, count: int) -> tuple[Any, tuple[Any, ...]]:
    outlet = twin.functions["Outlet"](1 << 40, [], [])
    receiver = twin.functions["Receiver"]
    return outlet, tuple(receiver(outlet, b"%d" % n) for n in range(count))


def _fan_out(twin: Twin) -> Call:
    outlet, receivers = _receivers(twin, 10)
    publish = (wire.PUB, b"orders.1", b"", 0, 128, b"x" * 128 + b"\r\n")
    deliver = twin.functions["fan_out"]

    def call() -> None:
        deliver((), receivers, (), publish, _never)
        outlet.outbox.clear()

    return call


@dataclass(frozen=True)
class Route:
    """The receivers of a subject."""

    ways: Any


def _fan_out_each(twin: Twin) -> Call:
    outlet, receivers = _receivers(twin, 50)
    publishes = [(wire.PUB, b"orders.%d" % n, b"", 0, 128, b"x" * 128 + b"\r\n") for n in range(50)]
    routes = {
        one[wire.SUBJECT]: Route(((), (receivers[n],), ())) for n, one in enumerate(publishes)
    }
    deliver = twin.functions["fan_out_each"]

    def call() -> None:
        deliver(publishes, routes, _never)
        outlet.outbox.clear()

    return call


def _never() -> float:
    raise AssertionError("there is no queue to choose from")


def _write_outbox(twin: Twin) -> Call:
    outlet, _ = _receivers(twin, 0)
    near, far = socket.socketpair()
    pieces = [b"MSG orders.1 ", *[b" 128\r\n" + b"x" * 128 + b"\r\nMSG orders.1 "] * 20, b""]
    write, buffer = twin.functions["write_outbox"], bytearray(1 << 20)

    def call() -> None:
        for sid in (b"1", b"2", b"3"):
            outlet.enqueue((sid, pieces), 3200)
        write(outlet, near.fileno())
        far.recv_into(buffer)

    return call


def _enqueue(twin: Twin) -> Call:
    outlet, _ = _receivers(twin, 0)

    def call() -> None:
        for _ in range(100):
            outlet.enqueue(b"", 100, 1, 80)
        outlet.outbox.clear()

    return call


def measure(call: Call, seconds: float) -> Figures:
    """Return calls per second of processor time."""
    calls, repeat = 0, 1
    started_s = time.process_time()
    while (spent_s := time.process_time() - started_s) < seconds:
        for _ in range(repeat):
            call()
        calls += repeat
        repeat *= 2
    return {"calls": calls / spent_s}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a twin does not earn its place, 2 without a compiled twin."""
    parser = command_line(
        "benchmarks.twins", __doc__, quick="measure for a tenth of the time", only="functions"
    )
    options = begin(parser, arguments)
    try:
        sides = twins()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = QUICK_SECONDS if options.quick else SECONDS
    rows = [gain(work, sides, seconds, options.rounds) for work in chosen(works(), options)]
    columns = [
        ("compiled, calls", value_of(OURS)),
        ("Python, calls", value_of(THEIRS)),
        ("gain", lambda row: f"{row.ratio() or 0:.1f}x"),
        ("goal", lambda row: str(row.goal)),
        ("met", verdict),
    ]
    print(f"{machine.describe()}\n\n{table('function', columns, rows)}")
    write_json(options, [row.as_json() for row in rows])
    return int(any(row.is_met() is False for row in rows))


def gain(work: Work, sides: Sequence[Twin], seconds: float, rounds: int) -> RatioRow:
    """Measure one function in both forms."""
    row = RatioRow(work.name, Goal("calls", GAIN_MIN, "/s"))
    calls = {side.name: work.make(side) for side in sides}
    take_turns([row], sides, rounds, lambda side: measure(calls[side.name], seconds))
    return row


if __name__ == "__main__":
    sys.exit(main())
