"""Blocks of S2: both implementations, the same blocks, the same errors."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compiled import compiled_twin

from penstock.hot import s2


@pytest.fixture(params=["python", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return s2 if request.param == "python" else compiled_twin()


BLOCKS = {
    "nothing": (b"\x00", b""),
    "as it is": (b"\x03\x08abc", b"abc"),
    "61 as they are": (b"\x3d\xf0\x3c" + b"x" * 61, b"x" * 61),
    "a copy that overlaps": (b"\x08\x04ab" + b"\x09\x02", b"abababab"),
    "a copy of two bytes offset": (b"\x06\x08abc\x0a\x03\x00", b"abcabc"),
    "a copy of four bytes offset": (b"\x06\x08abc\x0b\x03\x00\x00\x00", b"abcabc"),
    "the offset before again": (b"\x0d\x04ab\x05\x02\x09\x00", b"ababababababa"),
    "the offset before, for long": (b"\x10\x04ab\x05\x02\x15\x00\x01", b"ab" * 8),
}
DAMAGED = (
    *(b"", b"\x80", b"\xff\xff\xff\xff\xff", b"\x03\x08ab", b"\x04\x08abc", b"\x02\x08abc"),
    *(b"\x08\x04ab\x09\x03", b"\x08\x04ab\x09", b"\x05\x09\x00", b"\x06\x08abc\x0a\x03"),
    *(
        b"\x06\x08abc\x0b\x03\x00\x00",
        b"\x3d\xf0",
        b"\x10\x04ab\x05\x02\x19\x01",
        b"\x03\x04ab\x0a\x02\x00",
    ),
)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_decoded(twin: ModuleType, name: str) -> None:
    block, expected = BLOCKS[name]

    assert expected == twin.decode_s2(block)


@pytest.mark.parametrize("block", DAMAGED)
def test_a_damaged_block_is_refused(twin: ModuleType, block: bytes) -> None:
    with pytest.raises(ValueError, match="an S2 block is damaged"):
        twin.decode_s2(block)


def test_a_block_that_claims_too_much_is_refused(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="an S2 block is too large"):
        twin.decode_s2(b"\x81\x80\x80\x02")


def test_the_checksum_is_crc_32c(twin: ModuleType) -> None:
    assert 0xE3069283 == twin.crc32c(b"123456789")
    assert 0 == twin.crc32c(b"")


@given(st.binary(max_size=80))
def test_both_say_the_same_of_anything(block: bytes) -> None:
    compiled = compiled_twin()

    assert outcome(s2.decode_s2, block) == outcome(compiled.decode_s2, block)
    assert s2.crc32c(block) == compiled.crc32c(block)


def outcome(decode: Callable[[bytes], bytes], block: bytes) -> bytes | str:
    try:
        return decode(block)
    except ValueError as error:
        return str(error)
