"""What comes back from a snapshot counts as if it were published, and costs only its account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.security.tenants import Tenant, config
from tests.servers import PENSTOCK, PROGRAMS, Program, ServerProcess

from penstock.core import snappy
from penstock.jetstream.snapshots import archive
from penstock.jetstream.snapshots.archive import ArchiveEntry

CHUNK = 128 * 1024
DIGITS = "9" * 5000
TIME_NS = 1_800_000_000_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(PENSTOCK, config()) as started:
        with Tenant(started, "a") as victim:
            victim.create("A")
        yield started


def _entries(count: int, *, payload: bytes = b"x", step: int = 1) -> list[ArchiveEntry]:
    state = json.dumps({"first_seq": 1, "last_seq": 1 + (count - 1) * step}).encode()
    messages = [ArchiveEntry(b"R.x", TIME_NS, 1 + n * step, b"", payload) for n in range(count)]
    return [ArchiveEntry(archive.STATE, 1, payload=state), *messages]


def _chunks(entries: list[ArchiveEntry]) -> Iterator[bytes]:
    encoded = b"".join(map(archive.encode_entry, [*entries, archive.END]))
    data = archive.STREAM_IDENTIFIER + snappy.frames(archive.MAGIC + encoded)
    yield from (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))
    yield b""


def _restored(tenant: Tenant, entries: list[ArchiveEntry], **options: Any) -> Any:
    """Restore a stream, and return the last answer."""
    config = {"name": "R", "subjects": ["R.>"]} | options
    deliver = tenant.call("STREAM.RESTORE.R", config=config, state={})["deliver_subject"]
    for chunk in _chunks(entries):
        answer = tenant.ask(deliver, chunk)
        if answer != b"":
            return answer
    raise AssertionError("the end is answered")


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("whose", ["account", "server"])
def test_a_restore_stays_within_the_limits_of(whose: str, program: Program, storage: str) -> None:
    limits = "max_file: 2MB, max_mem: 1MB"
    text = config(limits)
    if whose == "server":
        text = text.replace(f"{{{limits}}}", "enabled")
        text = text.replace("jetstream { ", f"jetstream {{ {limits}, ")
    with ServerProcess(program, text) as server, Tenant(server, "b") as tenant:
        large = _restored(tenant, _entries(100, payload=bytes(50_000)), storage=storage)
        wanted = "storage" if storage == "file" else "memory"
        expected = f"insufficient {wanted} resources available"

        assert large["error"]["description"] == expected
        if program is PENSTOCK:
            # nats-server counts on what it has thrown away.
            assert tenant.call("INFO")[wanted] == 0
        tenant.call("STREAM.DELETE.R")
        assert "error" not in _restored(tenant, _entries(100), storage=storage)
        assert tenant.call("STREAM.INFO.R")["state"]["messages"] == 100


def test_a_snapshot_full_of_gaps_is_restored_while_others_work(server: ServerProcess) -> None:
    with Tenant(server, "b") as tenant, Tenant(server, "a") as victim:
        config = {"name": "R", "subjects": ["R.>"], "storage": "file"}
        deliver = tenant.call("STREAM.RESTORE.R", config=config, state={})["deliver_subject"]
        for chunk in _chunks(_entries(20_000, step=2000)):
            tenant.request(deliver, chunk)
            assert "seq" in victim.ask("A.x", b"payload")
            answer = next(answer for _, answer in tenant.answers())

        assert "error" not in answer
        state = tenant.call("STREAM.INFO.R")["state"]
        assert (state["messages"], state["last_seq"]) == (20_000, 1 + 19_999 * 2000)
        tenant.call("STREAM.DELETE.R")


@pytest.mark.parametrize("name", [b"a\0b", b"\xff", b"a.b", b"../x", "é".encode() * 128], ids=ascii)
def test_a_snapshot_with_a_consumer_nobody_could_keep_is_refused(
    server: ServerProcess, name: bytes
) -> None:
    place = {"consumer_seq": 0, "stream_seq": 0}
    document = {
        "config": {"ack_policy": "explicit", "deliver_policy": "all"},
        "state": {"delivered": place, "ack_floor": place},
    }
    consumer = ArchiveEntry(archive.CONSUMERS + name, 1, payload=json.dumps(document).encode())
    state, *messages = _entries(3)
    with Tenant(server, "b") as tenant:
        answer = _restored(tenant, [state, consumer, *messages])

        assert "error" in answer
        assert "R" not in (tenant.call("STREAM.NAMES")["streams"] or [])


@pytest.mark.parametrize("number", ["-1", "1e3", "18446744073709551616", DIGITS, '"1"', "[]"])
def test_a_snapshot_of_numbers_that_make_no_sense_is_refused(
    server: ServerProcess, number: str
) -> None:
    state = f'{{"first_seq":1,"last_seq":{number}}}'.encode()
    with Tenant(server, "b") as tenant:
        answer = _restored(tenant, [ArchiveEntry(archive.STATE, 1, payload=state)])

        assert answer["error"]["err_code"] == 10062


def test_a_snapshot_is_unpacked_no_further_than_its_account_may_store() -> None:
    pytest.importorskip("cramjam")
    entries = map(archive.encode_entry, _entries(40, payload=bytes(1 << 20)))
    framed = snappy.frames(archive.MAGIC + b"".join(entries), snappy.compressor())
    data = archive.STREAM_IDENTIFIER + framed
    with ServerProcess(PENSTOCK, config("max_file: 8MB")) as server, Tenant(server, "b") as tenant:
        wanted = {"name": "R", "subjects": ["R.>"], "storage": "file"}
        deliver = tenant.call("STREAM.RESTORE.R", config=wanted, state={})["deliver_subject"]

        answer = tenant.ask(deliver, data[: 900 * 1024])

        assert answer["error"]["description"] == "insufficient storage resources available"
        assert tenant.call("STREAM.NAMES")["total"] == 0


INJECTED = b"rs.x 1 0\r\n\r\nMSG secret.orders 7 4\r\npwnd\r\nMSG rs.z"


@pytest.mark.parametrize(
    "subject", [INJECTED, b"", b"a b", b"a\tb", b"a\r\nb", b"s" * 5000], ids=repr
)
def test_a_snapshot_with_a_subject_nobody_can_publish_to_is_refused(
    server: ServerProcess, subject: bytes
) -> None:
    state, message = _entries(1)
    with Tenant(server, "b") as tenant:
        answer = _restored(tenant, [state, message._replace(name=subject)])
        assert "nobody can publish to" in answer["error"]["description"]
        assert tenant.call("STREAM.NAMES")["streams"] is None


@pytest.mark.parametrize("header", [b"NATS/1.0\r\nA: b\r\n", b"\r\n\r\n", b"A: b\r\n\r\n"])
def test_a_snapshot_with_headers_that_are_none_is_refused(
    server: ServerProcess, header: bytes
) -> None:
    state, message = _entries(1)
    with Tenant(server, "b") as tenant:
        answer = _restored(tenant, [state, message._replace(header=header)])
        assert "headers that are none" in answer["error"]["description"]


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"first_seq": %b' % (b"9" * 5000), b"[]"])
def test_what_is_wrong_with_a_snapshot_is_said_in_its_own_words(
    server: ServerProcess, payload: bytes
) -> None:
    state, *messages = _entries(1)
    with Tenant(server, "b") as tenant:
        answer = _restored(tenant, [state._replace(payload=payload), *messages])
        assert "the snapshot is damaged" in answer["error"]["description"]
