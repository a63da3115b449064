"""Both twins of the wire protocol against one table, and the incremental parser on top."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from tests.compiled import compiled_twin

from penstock.hot import wire
from penstock.hot.wire import (
    CONNECT,
    CONTROL_LINE_EXCEEDED,
    ERR,
    FAIL,
    INFO,
    MALFORMED,
    MSG,
    OK,
    PAYLOAD_VIOLATION,
    PING,
    PONG,
    PUB,
    SUB,
    UNKNOWN_OPERATION,
    UNSUB,
    Op,
    Parser,
)

PAYLOAD_BYTES_MAX = 1000
CONTROL_LINE_BYTES_MAX = 40

UNKNOWN = (FAIL, UNKNOWN_OPERATION)
EXCEEDED = (FAIL, CONTROL_LINE_EXCEEDED)
VIOLATION = (FAIL, PAYLOAD_VIOLATION)
SILENT = (FAIL, MALFORMED)

# input, operations, how much is left over, how many bytes the next operation needs
Vector = tuple[bytes, list[Op], int, int]

BOTH_WAYS: list[Vector] = [
    (b"", [], 0, 0),
    (b"PING\r\n", [(PING,)], 0, 0),
    (b"PONG\r\n", [(PONG,)], 0, 0),
    (b"+OK\r\n", [(OK,)], 0, 0),
    (b"ping\r\npOnG\r\n+ok\r\n", [(PING,), (PONG,), (OK,)], 0, 0),
    (b"PING\nPONG\n", [(PING,), (PONG,)], 0, 0),
    (b"PING \t\r\n", [(PING,)], 0, 0),
    (b"PING\r\r\n", [(PING,)], 0, 0),
    (b"PING and more\r\n", [(PING,)], 0, 0),
    (b"P", [], 1, 0),
    (b"PIN", [], 3, 0),
    (b"PING\r", [], 5, 0),
    (b"PING\r\nPO", [(PING,)], 2, 0),
    (b"PINGX\r\npongy\r\n+OKAY\r\n", [(PING,), (PONG,), (OK,)], 0, 0),
    (b"PING\r\nFOO\r\nPING\r\n", [(PING,), UNKNOWN], 11, 0),
    (b" PING\r\n", [UNKNOWN], 7, 0),
    (b"\r\n", [UNKNOWN], 2, 0),
    (b"\n", [UNKNOWN], 1, 0),
    (b"\r", [UNKNOWN], 1, 0),
    (b" ", [UNKNOWN], 1, 0),
    (b"\x00\xff", [UNKNOWN], 2, 0),
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", [UNKNOWN], 27, 0),
    (b"GET / HTTP/1.1", [UNKNOWN], 14, 0),
    (b"\x16\x03\x01\x02\x00\x01", [UNKNOWN], 6, 0),
    (b"PING " + b"x" * 40 + b"\r\n", [(PING,)], 0, 0),
    (b"PING " + b"x" * 41 + b"\r\n", [EXCEEDED], 48, 0),
    (b"PING " + b"x" * 43, [], 48, 0),
    (b"PING " + b"x" * 44, [EXCEEDED], 49, 0),
]

COMMANDS: list[Vector] = [
    (b"CONNECT {}\r\n", [(CONNECT, b"{}")], 0, 0),
    (b'connect\t {"a": 1} \r\n', [(CONNECT, b'{"a": 1} ')], 0, 0),
    (b"CONNECT\r\n", [(CONNECT, b"")], 0, 0),
    (b"CONNECT{}\r\n", [(CONNECT, b"{}")], 0, 0),
    (b"CONNEC", [], 6, 0),
    (b"CONNEX", [UNKNOWN], 6, 0),
    (b"CONNECT " + b"x" * 41 + b"\r\n", [EXCEEDED], 51, 0),
    (b"SUB a.* 1\r\n", [(SUB, b"a.*", b"", b"1")], 0, 0),
    (b"SUB a q 1\r\n", [(SUB, b"a", b"q", b"1")], 0, 0),
    (b"sub \t a \t q\t1 \r\n", [(SUB, b"a", b"q", b"1")], 0, 0),
    (b"SUB \ra\r1\r\r\n", [(SUB, b"a", b"", b"1")], 0, 0),
    (b"SUB a\x0b\x0cb 1\r\n", [(SUB, b"a\x0b\x0cb", b"", b"1")], 0, 0),
    (b"SUB\x0ba 1\r\n", [UNKNOWN], 9, 0),
    (b"SUB\ra 1\r\n", [UNKNOWN], 9, 0),
    (b"SUBa 1\r\n", [UNKNOWN], 8, 0),
    (b"SUB\r\n", [UNKNOWN], 5, 0),
    (b"SUB \r\n", [SILENT], 6, 0),
    (b"SUB a\r\n", [SILENT], 7, 0),
    (b"SUB a q 1 x\r\n", [SILENT], 13, 0),
    (b"SUB a q 1 x y z\r\n", [SILENT], 17, 0),
    (b"UNSUB 1\r\n", [(UNSUB, b"1", 0)], 0, 0),
    (b"UNSUB 1 5\r\n", [(UNSUB, b"1", 5)], 0, 0),
    (b"UNSUB 1 999999999\r\n", [(UNSUB, b"1", 999_999_999)], 0, 0),
    (b"UNSUB 1 1000000000\r\n", [(UNSUB, b"1", 0)], 0, 0),
    (b"UNSUB 1 many\r\n", [(UNSUB, b"1", 0)], 0, 0),
    (b"UNSUB 1 -5\r\n", [(UNSUB, b"1", 0)], 0, 0),
    (b"UNSUB\r\n", [UNKNOWN], 7, 0),
    (b"UNSUB 1 2 3\r\n", [SILENT], 13, 0),
    (b"PUB a 2\r\nhi\r\n", [(PUB, b"a", b"", 0, 2, b"hi\r\n")], 0, 0),
    (b"pub a r 2\nhi\r\n", [(PUB, b"a", b"r", 0, 2, b"hi\r\n")], 0, 0),
    (b"PUB  a\t r  02 \r\nhi\r\n", [(PUB, b"a", b"r", 0, 2, b"hi\r\n")], 0, 0),
    (b"PUB a 0\r\n\r\n", [(PUB, b"a", b"", 0, 0, b"\r\n")], 0, 0),
    (b"PUB a 2\r\n\r\n\r\n", [(PUB, b"a", b"", 0, 2, b"\r\n\r\n")], 0, 0),
    (b"PUB a 2\r\nhi\r\nPING\r\n", [(PUB, b"a", b"", 0, 2, b"hi\r\n"), (PING,)], 0, 0),
    (b"PUB \xc3\xb1.\xff 1\r\n\x00\r\n", [(PUB, b"\xc3\xb1.\xff", b"", 0, 1, b"\x00\r\n")], 0, 0),
    (b"PUB a 2\r\n", [], 9, 13),
    (b"PUB a 2\r\nhi\r", [], 12, 13),
    (b"PING\r\nPUB a 2\r\nh", [(PING,)], 10, 13),
    (b"PUB a 2\r\nhiya\r\n", [UNKNOWN], 15, 0),
    (b"PUB a 2\r\nhi\n\r", [UNKNOWN], 13, 0),
    (b"PUB a 1000\r\n", [], 12, 1014),
    (b"PUB a 1001\r\n", [VIOLATION], 12, 0),
    (b"PUB a 999999999\r\n", [VIOLATION], 17, 0),
    (b"PUB a 1000000000\r\n", [SILENT], 18, 0),
    (b"PUB a 0000000001\r\nx\r\n", [SILENT], 21, 0),
    (b"PUB a 99999999999999999999\r\n", [SILENT], 28, 0),
    (b"PUB a -1\r\n", [SILENT], 10, 0),
    (b"PUB a +1\r\n", [SILENT], 10, 0),
    (b"PUB a 1_0\r\n", [SILENT], 11, 0),
    (b"PUB a \xd9\xa1\r\n", [SILENT], 10, 0),
    (b"PUB a x\r\n", [SILENT], 9, 0),
    (b"PUB\r\n", [UNKNOWN], 5, 0),
    (b"PUB 2\r\nhi\r\n", [SILENT], 11, 0),
    (b"PUB a r x 2\r\nhi\r\n", [SILENT], 17, 0),
    (b"PUB " + b"a" * 38 + b" 0\r\n\r\n", [(PUB, b"a" * 38, b"", 0, 0, b"\r\n")], 0, 0),
    (b"PUB " + b"a" * 39 + b" 0\r\n\r\n", [EXCEEDED], 49, 0),
    (b"HPUB a 2 5\r\nhhabc\r\n", [(PUB, b"a", b"", 2, 5, b"hhabc\r\n")], 0, 0),
    (b"HPUB a r 2 2\r\nhh\r\n", [(PUB, b"a", b"r", 2, 2, b"hh\r\n")], 0, 0),
    (b"HPUB a 0 1\r\nx\r\n", [(PUB, b"a", b"", 0, 1, b"x\r\n")], 0, 0),
    (b"HPUB a 2 5\r\nhh", [], 14, 19),
    (b"HPUB a 5\r\nhhabc\r\n", [SILENT], 17, 0),
    (b"HPUB a 6 5\r\nhhabc\r\n", [SILENT], 19, 0),
    (b"HPUB a x 5\r\nhhabc\r\n", [SILENT], 19, 0),
    (b"HPUB a 2 x\r\nhhabc\r\n", [SILENT], 19, 0),
    (b"HPUB a 2 1001\r\n", [VIOLATION], 15, 0),
    (b"MSG a 1 1\r\nx\r\n", [UNKNOWN], 14, 0),
    (b"-ERR 'x'\r\n", [SILENT], 10, 0),
    (b"-ERR\r\n", [UNKNOWN], 6, 0),
    (b"INFO {}\r\n", [(INFO, b"{}")], 0, 0),
    (b"INFO\r\n", [(INFO, b"")], 0, 0),
    # Runs.
    (b"PUB a 1\r\nx\r\nPUB a 1\r\ny\r\n", [(PUB, b"a", b"", 0, 1, b"x\r\ny\r\n")], 0, 0),
    (b"PUB a 0\r\n\r\n" * 3, [(PUB, b"a", b"", 0, 0, b"\r\n" * 3)], 0, 0),
    (b"PUB a 1\r\nx\r\n" * 2 + b"PUB a 1\r\n", [(PUB, b"a", b"", 0, 1, b"x\r\n" * 2)], 9, 12),
    (
        b"PUB a 1\r\nx\r\nPUB a 1\r\nyz\r",
        [(PUB, b"a", b"", 0, 1, b"x\r\n"), UNKNOWN],
        12,
        0,
    ),
    (
        b"PUB a 1\r\nx\r\nPUB a 1\ny\r\nPUB b 1\nz\r\n",
        [
            (PUB, b"a", b"", 0, 1, b"x\r\n"),
            (PUB, b"a", b"", 0, 1, b"y\r\n"),
            (PUB, b"b", b"", 0, 1, b"z\r\n"),
        ],
        0,
        0,
    ),
    (
        b"PUB a 9\r\nPUB a 9\r\n\r\n" * 2,
        [(PUB, b"a", b"", 0, 9, b"PUB a 9\r\n\r\n" * 2)],
        0,
        0,
    ),
    (
        b"HPUB a r 1 2\r\nhx\r\nHPUB a r 1 2\r\nhy\r\n",
        [(PUB, b"a", b"r", 1, 2, b"hx\r\nhy\r\n")],
        0,
        0,
    ),
]

MESSAGES: list[Vector] = [
    (b"INFO {} \r\n", [(INFO, b"{} ")], 0, 0),
    (b"INFO\r\n", [(INFO, b"")], 0, 0),
    (b"-ERR 'Stale Connection'\r\n", [(ERR, b"Stale Connection")], 0, 0),
    (b"-err ''it's''\r\n", [(ERR, b"it's")], 0, 0),
    (b"-ERR '\r\n", [(ERR, b"")], 0, 0),
    (b"-ERR\r\n", [UNKNOWN], 6, 0),
    (b"MSG a 7 2\r\nhi\r\n", [(MSG, b"a", b"7", b"", 0, b"hi")], 0, 0),
    (b"msg a 7 r 2\nhi\r\n", [(MSG, b"a", b"7", b"r", 0, b"hi")], 0, 0),
    (b"MSG a 7 0\r\n\r\n" * 2, [(MSG, b"a", b"7", b"", 0, b"")] * 2, 0, 0),
    (b"HMSG a 7 2 5\r\nhhabc\r\n", [(MSG, b"a", b"7", b"", 2, b"hhabc")], 0, 0),
    (b"HMSG a 7 r 2 2\r\nhh\r\n", [(MSG, b"a", b"7", b"r", 2, b"hh")], 0, 0),
    (b"MSG a 7 2\r\nh", [], 12, 15),
    (b"MSG a 7 2\r\nhiya", [UNKNOWN], 15, 0),
    (b"MSG a 7 1001\r\n", [VIOLATION], 14, 0),
    (b"MSG\r\n", [UNKNOWN], 5, 0),
    (b"MSG a 7\r\n", [SILENT], 9, 0),
    (b"MSG a 7 x\r\n", [SILENT], 11, 0),
    (b"HMSG a 7 3 2\r\nhh\r\n", [SILENT], 18, 0),
    (b"HMSG a 7 r x 3 2\r\nhh\r\n", [SILENT], 22, 0),
    (b"PUB a 1\r\nx\r\n", [UNKNOWN], 12, 0),
    (b"CONNECT {}\r\n", [UNKNOWN], 12, 0),
]

SESSION = (
    b'CONNECT {"verbose":false}\r\nPING\r\nSUB a.> 1\r\nsub b q 2\nUNSUB 1 9\r\n'
    b"PUB a.b 2\r\nhi\r\nPUB a.b 2\r\nho\r\nPUB a.b 2\r\n\r\n\r\nPUB a.b reply 0\r\n\r\n"
    b"HPUB a.c 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB a 9\r\nPUB a 9\r\n\r\nPONG\r\n+OK\r\n"
)
DELIVERIES = (
    b"INFO {} \r\nPING\r\n+OK\r\nMSG a.b 1 2\r\nhi\r\nMSG a.b 1 r 0\r\n\r\n"
    b"HMSG a.c 12 12 14\r\nNATS/1.0\r\n\r\nhi\r\n-ERR 'Invalid Subject'\r\nPONG\r\n"
)


@pytest.fixture(params=["reference", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return wire if request.param == "reference" else compiled_twin()


@pytest.fixture
def compiled() -> ModuleType:
    return compiled_twin()


def single(operations: list[Op]) -> list[Op]:
    """Take runs apart, because where a buffer is cut decides how long they are."""
    singles: list[Op] = []
    for operation in operations:
        if operation[0] == PUB:
            *line, size, data = operation
            strides = range(0, len(data), size + 2)
            singles += [(*line, size, data[offset : offset + size + 2]) for offset in strides]
        else:
            singles.append(operation)
    return singles


def parse(function: Callable[..., wire.Parsed], data: wire.Buffer) -> wire.Parsed:
    return function(data, PAYLOAD_BYTES_MAX, CONTROL_LINE_BYTES_MAX)


@pytest.mark.parametrize(("data", "operations", "left", "needed"), BOTH_WAYS + COMMANDS)
def test_commands_parse_as_the_table_says(
    twin: ModuleType, data: bytes, operations: list[Op], left: int, needed: int
) -> None:
    assert (operations, len(data) - left, needed) == parse(twin.parse_commands, data)


@pytest.mark.parametrize(("data", "operations", "left", "needed"), BOTH_WAYS + MESSAGES)
def test_messages_parse_as_the_table_says(
    twin: ModuleType, data: bytes, operations: list[Op], left: int, needed: int
) -> None:
    assert (operations, len(data) - left, needed) == parse(twin.parse_messages, data)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_will_do_and_the_operations_own_their_bytes(
    twin: ModuleType, buffer: type[wire.Buffer]
) -> None:
    data = bytearray(b"PUB a 2\r\nhi\r\nSUB a 1\r\nPU")

    parsed = parse(twin.parse_commands, buffer(data))
    data[:] = bytes(len(data))

    assert ([(PUB, b"a", b"", 0, 2, b"hi\r\n"), (SUB, b"a", b"", b"1")], 22, 0) == parsed
    assert {type(field) for field in parsed[0][0]} == {int, bytes}


def test_a_limit_may_be_larger_than_any_machine_number(twin: ModuleType) -> None:
    parsed = twin.parse_commands(b"PUB a 999999999\r\n", 10**30, 10**30)

    assert ([], 0, 17 + 999_999_999 + 2) == parsed


@pytest.mark.parametrize("size", [0, 1, 9, 100])
@pytest.mark.parametrize("count", [2, 3, 50])
def test_a_run_cut_anywhere_holds_the_messages_that_are_whole(
    twin: ModuleType, size: int, count: int
) -> None:
    message = b"HPUB a r 0 %d\r\n" % size + b"\n" * size + b"\r\n"
    for cut in range(len(message) * count + 1):
        whole, rest = divmod(cut, len(message))

        operations, consumed, _ = parse(twin.parse_commands, (message * count)[:cut])

        data = (b"\n" * size + b"\r\n") * whole
        assert [(PUB, b"a", b"r", 0, size, data)] * bool(whole) == operations
        assert cut - rest == consumed


@pytest.mark.parametrize(
    ("parse_name", "transcript"), [("parse_commands", SESSION), ("parse_messages", DELIVERIES)]
)
@pytest.mark.parametrize("buffer", [bytes, memoryview])
def test_a_cut_anywhere_changes_nothing(
    twin: ModuleType, parse_name: str, transcript: bytes, buffer: type[wire.Buffer]
) -> None:
    function = getattr(twin, parse_name)
    uncut = single(Parser(function, 1000, 100).feed(transcript))
    assert FAIL not in {operation[0] for operation in uncut}
    for cut in range(len(transcript) + 1):
        parser = Parser(function, 1000, 100)

        operations = parser.feed(buffer(transcript[:cut]))
        operations += parser.feed(buffer(transcript[cut:]))

        assert uncut == single(operations)
        assert parser.pending_bytes == 0


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_small_reads_change_nothing(twin: ModuleType, step: int) -> None:
    parser = Parser(twin.parse_commands, 1000, 100)
    operations: list[Op] = []
    for start in range(0, len(SESSION), step):
        operations += parser.feed(SESSION[start : start + step])

    assert single(Parser(twin.parse_commands, 1000, 100).feed(SESSION)) == single(operations)


@pytest.mark.parametrize(("data", "operations", "left", "needed"), BOTH_WAYS + COMMANDS)
def test_a_parser_fails_once_and_holds_what_is_left(
    twin: ModuleType, data: bytes, operations: list[Op], left: int, needed: int
) -> None:
    for cut in range(len(data) + 1):
        parser = Parser(twin.parse_commands, PAYLOAD_BYTES_MAX, CONTROL_LINE_BYTES_MAX)

        fed = parser.feed(data[:cut])
        if not fed or fed[-1][0] != FAIL:
            fed += parser.feed(data[cut:])
            assert (FAIL in {operation[0] for operation in fed}) or left == parser.pending_bytes

        assert single(operations) == single(fed)


def test_nothing_after_a_failure_is_parsed(twin: ModuleType) -> None:
    parser = Parser(twin.parse_commands, 1000, 100)

    assert [] == parser.feed(b"PUB a 1\r\nx")
    assert [UNKNOWN] == parser.feed(b"xxPING\r\n")


def test_a_parser_takes_new_limits_at_once(twin: ModuleType) -> None:
    parser = Parser(twin.parse_commands, 1, 100)
    parser.payload_bytes_max = 2

    assert [(PUB, b"a", b"", 0, 2, b"hi\r\n")] == parser.feed(b"PUB a 2\r\nhi\r\n")


PUBLISHES: list[Op] = [
    (PUB, b"a", b"", 0, 2, b"hi\r\n"),
    (PUB, b"a.b", b"reply", 0, 1, b"x\r\ny\r\nz\r\n"),
    (PUB, b"h", b"", 3, 5, b"hhhab\r\nhhhcd\r\n"),
    (PUB, b"h", b"_INBOX.1", 4, 4, b"hhhh\r\n"),
    (PUB, b"empty", b"", 0, 0, b"\r\n\r\n"),
    (PUB, b"large", b"", 0, 1234, b"x" * 1234 + b"\r\n"),
]


def test_publishes_are_counted_together(twin: ModuleType) -> None:
    assert (0, 0, False) == twin.publish_totals([], ())
    assert (1, 2, False) == twin.publish_totals(PUBLISHES[:1], (b"_R_.",))
    assert (10, 1253, False) == twin.publish_totals(PUBLISHES, (b"_R_.", b"replying"))
    assert (10, 1253, True) == twin.publish_totals(PUBLISHES, (b"_R_.", b"_INBOX."))


@pytest.mark.parametrize(
    ("is_traced", "header", "payload"),
    [
        (True, b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n", b""),
        (True, b"NATS/1.0\r\nOther: x\r\nNats-Trace-Dest:t\r\n\r\n", b"payload"),
        (True, b"\nNats-Trace-Dest:", b""),
        (False, b"\nNats-Trace-Dest", b": t"),
        (False, b"NATS/1.0\r\nNats-Trace-Des: t\r\n\r\n", b"\nNats-Trace-Dest: t"),
        (False, b"NATS/1.0\r\nnats-trace-dest: t\r\n\r\n", b""),
        (False, b"NATS/1.0\r\nA: Nats-Trace-Dest: t\r\n\r\n", b""),
        (False, b"", b"\nNats-Trace-Dest: t"),
        (False, b"\n", b""),
    ],
)
def test_publishes_to_be_traced_are_told(
    twin: ModuleType, is_traced: bool, header: bytes, payload: bytes
) -> None:
    other = b"x" * len(header) + payload + b"\r\n"
    size = len(header) + len(payload)
    for data in (header + payload + b"\r\n", 2 * other + header + payload + b"\r\n" + other):
        publish: Op = (PUB, b"a", b"", len(header), size, data)

        assert is_traced == twin.publish_totals([PUBLISHES[0], publish], (b"_R_.",))[2]


@pytest.mark.parametrize("count", range(len(PUBLISHES) + 1))
@pytest.mark.parametrize("sid", [b"1", b"4096", b"a-sid-of-text"])
def test_joined_pieces_parse_as_the_messages_published(
    twin: ModuleType, count: int, sid: bytes
) -> None:
    deliveries = sid.join(twin.message_pieces(PUBLISHES[:count]))

    messages = [
        (MSG, subject, sid, reply, header_bytes, data[:-2])
        for _, subject, reply, header_bytes, _, data in single(PUBLISHES[:count])
    ]
    assert (messages, len(deliveries), 0) == twin.parse_messages(deliveries, 2000, 100)


def test_pieces_are_what_nats_server_sends(twin: ModuleType) -> None:
    deliveries = b"7".join(twin.message_pieces(tuple(PUBLISHES[:4])))

    assert (
        b"MSG a 7 2\r\nhi\r\n"
        b"MSG a.b 7 reply 1\r\nx\r\nMSG a.b 7 reply 1\r\ny\r\nMSG a.b 7 reply 1\r\nz\r\n"
        b"HMSG h 7 3 5\r\nhhhab\r\nHMSG h 7 3 5\r\nhhhcd\r\n"
        b"HMSG h 7 _INBOX.1 4 4\r\nhhhh\r\n"
    ) == deliveries


@pytest.mark.parametrize(
    "publish",
    [
        (PUB, b"a", b"", 0, 2, b"hi\r"),
        (PUB, b"a", b"", 0, 0, b""),
        (PUB, b"a", b"", 0, -1, b"\r\n"),
        (PUB, b"a", b"", -1, 0, b"\r\n"),
        (PUB, b"a", b"", 3, 2, b"hi\r\n"),
        (PUB, b"a", b"", 0, 2**64, b"hi\r\n"),
        (PUB, b"a", b"", 0, 0),
        (PUB, b"a", b"", 0, 0, b"\r\n", b""),
    ],
)
def test_a_publish_that_does_not_fit_its_data_cannot_be_encoded(
    twin: ModuleType, publish: Op
) -> None:
    with pytest.raises(ValueError, match=r"publish|unpack"):
        twin.message_pieces([PUBLISHES[0], publish])


@pytest.mark.parametrize(
    "publishes",
    [
        None,
        [None],
        [(PUB, "a", b"", 0, 0, b"\r\n")],
        [(PUB, b"a", None, 0, 0, b"\r\n")],
        [(PUB, b"a", b"", None, 0, b"\r\n")],
        [(PUB, b"a", b"", 0, "0", b"\r\n")],
        [(PUB, b"a", b"", 0, 0, 7)],
    ],
)
def test_the_compiled_twin_refuses_what_is_no_publish(
    compiled: ModuleType, publishes: object
) -> None:
    with pytest.raises((TypeError, ValueError)):
        compiled.message_pieces(publishes)


@pytest.mark.parametrize(
    "publishes",
    [
        None,
        [(PUB, b"a", None, 0, 0, b"\r\n")],
        [(PUB, b"a", b"", 0, "0", b"\r\n")],
        [(PUB, b"a", b"", 0, -2, b"\r\n")],
        [(PUB, b"a", b"", 0, 0, 7)],
        [(PUB, b"a", b"")],
        [7],
    ],
)
def test_the_compiled_twin_counts_only_publishes(compiled: ModuleType, publishes: object) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, SystemError)):
        compiled.publish_totals(publishes, (b"_R_.",))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (b"PING\r\n",),
        (b"PING\r\n", 1, 1, 1),
        ("PING\r\n", 1, 1),
        (b"PING\r\n", "1", 1),
        (b"PING\r\n", 1, None),
    ],
)
def test_the_compiled_twin_refuses_wrong_arguments(
    compiled: ModuleType, arguments: tuple[object, ...]
) -> None:
    for function in (compiled.parse_commands, compiled.parse_messages):
        with pytest.raises(TypeError):
            function(*arguments)
    with pytest.raises(BufferError):
        compiled.parse_commands(memoryview(b"PING\r\n")[::2], 1, 1)
