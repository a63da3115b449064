from collections.abc import Sequence

from penstock.wire import Buffer, Op, Parsed

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
def message_pieces(publishes: Sequence[Op], /) -> list[bytes]: ...
