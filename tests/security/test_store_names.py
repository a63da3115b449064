"""What a client names is kept under its name: only names that a file system takes are taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.jetstream.world import World

import penstock
from penstock.config.file.loading import load
from penstock.errors import ConfigError, JetStreamError
from penstock.jetstream.config import rules
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.consumers import consumers
from penstock.jetstream.store.file.disk import NAME_BYTES_MAX, is_file_name

REFUSED = (
    *("a\0b", "\0", "a\nb", "\x01", "\x7f", "\x85", "a\x1fb"),
    "\ud800",
    "\udc80",
    "a" * 256,
    "é" * 128,
    "\U0001f600" * 64,
)
TAKEN = ("a", "A" * 255, "é" * 127, "\U0001f600" * 63, "$KV", "-", "a b".replace(" ", "_"))


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_a_file_name_is_what_the_operating_system_makes_a_directory_of(name: str) -> None:
    if not is_file_name(name):
        return
    encoded = os.fsencode(name)

    assert b"\0" not in encoded
    assert b"/" not in encoded
    assert 0 < len(encoded) <= NAME_BYTES_MAX
    assert os.fsdecode(encoded) == name


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_name_that_no_file_system_takes_is_none(name: str) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize("name", TAKEN, ids=ascii)
def test_a_name_that_is_taken_can_be_a_directory(name: str, tmp_path: Path) -> None:
    assert is_file_name(name)
    (tmp_path / name).mkdir()


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_stream_with_such_a_name_is_refused(name: str, storage: str) -> None:
    config = StreamConfig(name=name, subjects=("s",), storage=storage)

    with pytest.raises(JetStreamError, match="stream name"):
        rules.checked_create(config, lambda other: None)


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_consumer_with_such_a_name_is_refused(name: str, storage: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"], storage=storage)

    stream = world.engine.streams["S"]

    with pytest.raises(JetStreamError, match="consumer name"):
        consumers.create(
            stream, ConsumerConfig(name=name), action="", pedantic=False, answer=lambda _: None
        )

    assert stream.consumers == {}


@pytest.mark.parametrize("name", TAKEN, ids=ascii)
def test_a_stream_and_a_consumer_with_a_name_that_is_taken_come_back(
    name: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.create(name, subjects=["s"], storage="file")
    options = {"durable_name": name, "name": name, "ack_policy": "explicit"}
    world.call(f"CONSUMER.CREATE.{name}.{name}", stream_name=name, config=options)

    world.restart()

    assert list(world.engine.streams) == [name]
    assert list(world.engine.streams[name].consumers) == [name]


WRONG_ACCOUNTS = {
    "a control character": '"a\\x07b"',
    "a line break": '"a\\nb"',
    "too long": f'"{"x" * 256}"',
    "too long when quoted": f'"{"é" * 43}"',
}


@pytest.mark.parametrize("written", WRONG_ACCOUNTS.values(), ids=WRONG_ACCOUNTS)
@pytest.mark.parametrize("config", ["accounts {{ {} {{}} }}", "accounts: [ {} ]"])
def test_an_account_that_no_directory_can_be_named_after_is_refused(
    tmp_path: Path, config: str, written: str
) -> None:
    with pytest.raises(ConfigError, match=r"server.conf:1:.*account"):
        accounts(tmp_path, config.format(written))


@pytest.mark.parametrize("name", ["x" * 255, "é" * 42])
def test_an_account_may_have_the_longest_name_of_a_directory(tmp_path: Path, name: str) -> None:
    assert [name] == accounts(tmp_path, f'accounts: [ "{name}" ]')


def accounts(directory: Path, text: str) -> list[str]:
    """Return the names of the accounts in a configuration."""
    path = directory / "server.conf"
    path.write_text(text)
    return [each.name for each in load(str(path), {}, []).server.authorization.accounts]


LIKE = "\ufffd"
"""What invalid bytes become where a text is shown: a name that somebody may have."""
OTHER = b"\xff"

CALLS = (
    *("STREAM.DELETE.%b", "STREAM.PURGE.%b", "STREAM.INFO.%b", "CONSUMER.DELETE.%b.%b"),
    *("CONSUMER.INFO.%b.%b", "CONSUMER.INFO.S.%b", "CONSUMER.DELETE.S.%b"),
)


def deliveries_for(world: World, subject: bytes, reply: bytes = b"_INBOX.o") -> list[bytes]:
    world.send(b"PUB %b %b 0\r\n\r\n" % (subject, reply))
    world.settle()
    return [data for _, data in world.deliveries()]


def likened(directory: Path) -> World:
    world = World(directory)
    for name in (LIKE, "S"):
        world.create(name, subjects=[f"{name!a}.>".replace("\\", "")], allow_direct=True)
        config = {"name": LIKE, "durable_name": LIKE, "ack_policy": "explicit"}
        call = f"CONSUMER.CREATE.{name}.{LIKE}"
        assert "error" not in world.call(call, stream_name=name, config=config)
    return world


@pytest.mark.parametrize("call", CALLS)
def test_bytes_that_are_shown_alike_name_nothing_that_exists(call: str, tmp_path: Path) -> None:
    world = likened(tmp_path)
    subject = b"$JS.API." + call.encode().replace(b"%b", OTHER)

    (answer,) = deliveries_for(world, subject)

    assert b"not found" in answer
    assert set(world.engine.streams) == {LIKE, "S"}
    assert set(world.engine.streams["S"].consumers) == {LIKE}


@pytest.mark.parametrize("call", ["DIRECT.GET.%b.x", "CONSUMER.MSG.NEXT.%b.%b"])
def test_such_bytes_reach_no_stream_and_no_consumer(call: str, tmp_path: Path) -> None:
    subject = b"$JS.API." + call.encode().replace(b"%b", OTHER)

    ((header_bytes, data),) = _after(likened(tmp_path), subject)

    assert data[:header_bytes].startswith(b"NATS/1.0 503")


def _after(world: World, subject: bytes) -> list[tuple[int, bytes]]:
    world.send(b"PUB %b _INBOX.o 0\r\n\r\n" % subject)
    world.settle()
    return world.deliveries()


def test_such_bytes_ack_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    config = {"name": LIKE, "durable_name": LIKE, "ack_policy": "explicit"}
    world.call(f"CONSUMER.CREATE.S.{LIKE}", stream_name="S", config=config)
    world.publish("s", "x")
    world.settle()
    world.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{LIKE}", reply="_INBOX.n")
    pending = world.engine.streams["S"].consumers[LIKE].ledger.pending
    assert len(pending) == 1

    world.send(b"PUB $JS.ACK.S.%b.1.1.1.1.0 0\r\n\r\n" % OTHER)
    assert len(pending) == 1
    world.send(b"PUB $JS.ACK.S.%b.1.1.1.1.0 0\r\n\r\n" % LIKE.encode())
    assert len(pending) == 0


SHOWN_ONLY = {
    *("core/account.py", "core/identity/connect.py", "core/reports/messagetrace.py"),
    *("jetstream/api/api.py", "jetstream/api/audit.py", "jetstream/api/streamapi.py"),
    *("jetstream/config/stream.py", "jetstream/consumers/settlement.py"),
    *("jetstream/copies/origins.py", "jetstream/copies/sourcing.py"),
    *("jetstream/intake/atomicbatch.py", "jetstream/intake/checks.py"),
    *("jetstream/intake/counters.py", "jetstream/intake/expiry.py"),
    *("jetstream/intake/fastbatch.py", "jetstream/intake/publish.py"),
    *("jetstream/intake/schedules.py", "jetstream/snapshots/restore.py"),
    *("net/monitor/connz.py", "net/system/accountserver.py", "net/system/claimsrequests.py"),
    *("net/monitor/console/buses.py", "net/monitor/console/views.py"),
    "net/monitor/watch/survey.py",
    "net/process.py",
    *("protocol/headers.py", "protocol/strictjson.py", "protocol/subjects.py"),
    "protocol/transforms.py",
}
"""Where invalid bytes become U+FFFD: in what is shown, in JSON and in headers, as Go has it."""


def test_only_texts_that_name_nothing_lose_their_invalid_bytes() -> None:
    source = Path(penstock.__file__).parent
    parts = ("core", "jetstream", "net", "protocol", "keys", "hot")
    files = [each for part in parts for each in (source / part).rglob("*.py")]
    found = {
        str(each.relative_to(source)) for each in files if 'errors="replace"' in each.read_text()
    }

    assert found <= SHOWN_ONLY
