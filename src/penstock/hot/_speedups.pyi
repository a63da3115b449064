from collections.abc import Iterable, Sequence

from penstock.hot.deliveries import Columns
from penstock.hot.fanout import Outlet as Outlet
from penstock.hot.fanout import Receiver as Receiver
from penstock.hot.fanout import fan_out as fan_out
from penstock.hot.fanout import fan_out_each as fan_out_each
from penstock.hot.outbox import write_outbox as write_outbox
from penstock.hot.records import Entry, Message
from penstock.hot.wire import Buffer, Op, Parsed

# The constants that both twins must agree on.
PUB: int
SUB: int
UNSUB: int
CONNECT: int
PING: int
PONG: int
OK: int
FAIL: int
MSG: int
INFO: int
ERR: int
KIND: int
SUBJECT: int
REPLY: int
HEADER_BYTES: int
SIZE: int
DATA: int
SIZE_DIGITS_MAX: int
VERB_BYTES_MAX: int
SHARED_BYTES: int
WRITE_BYTES: int
WRITE_BUFFERS: int
RECORD_BYTES_MIN: int
RECORD_MARK: int
POLYNOMIAL: int
BLOCK_BYTES_MAX: int
UNKNOWN_OPERATION: bytes
PAYLOAD_VIOLATION: bytes
CONTROL_LINE_EXCEEDED: bytes
MALFORMED: bytes

def parse_commands(
    buffer: Buffer,
    payload_bytes_max: int,
    control_line_bytes_max: int,
    /,
) -> Parsed: ...
def parse_messages(
    buffer: Buffer,
    payload_bytes_max: int,
    control_line_bytes_max: int,
    /,
) -> Parsed: ...
def publish_totals(
    publishes: list[Op], reserved: tuple[bytes, ...], /
) -> tuple[int, int, bool]: ...
def message_pieces(publishes: Sequence[Op], /) -> list[bytes]: ...
def collect_deliveries(
    buffer: Buffer, wanted: int, consumer_sequence: int, sequence_max: int, /
) -> Columns: ...
def have_prefix(publishes: list[Op], prefix: bytes, /) -> bool: ...
def plain_acks(publishes: list[Op], prefix: bytes, start: int, /) -> tuple[list[int], int]: ...
def are_siblings(subjects: list[bytes], parent: bytes, /) -> bool: ...
def numbered_answers(
    replies: list[bytes], sid: bytes, before: bytes, after: bytes, first_number: int, /
) -> tuple[bytes, int]: ...
def stored_answer(reply: bytes, stream: bytes, message: Message, /) -> Op: ...
def first_deliveries(
    messages: Sequence[Message], prefix: bytes, consumer_sequence: int, pending: int, /
) -> list[Op]: ...
def encode_deliveries(
    messages: Sequence[Message],
    prefix: bytes,
    consumer_sequence: int,
    pending: int,
    sid: bytes,
    request_count: int,
    /,
) -> tuple[bytes, int, list[int]]: ...
def plain_entries(
    publishes: Sequence[Op], time_ns: int, /
) -> tuple[list[Entry], list[bytes]] | None: ...
def encode_records(
    first_sequence: int, entries: Sequence[Entry], salt: int, /
) -> tuple[bytes, list[int]]: ...
def decode_messages(
    buffer: bytes, offsets: Iterable[int], base: int, salt: int, /
) -> list[Message | None]: ...
def crc32c(data: bytes, /) -> int: ...
def decode_s2(block: bytes, /) -> bytes: ...
