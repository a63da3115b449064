"""`penstock stream backup` and `restore` against the real server and ours."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli

from penstock.cli.stream import archive
from penstock.client import JetStream

MESSAGES = 60


@pytest.fixture
def orders(cli: Cli) -> dict[str, Any]:
    """Make a work queue with gaps and headers, and return its state."""
    cli("stream", "create", "ORDERS", "--subjects", "orders.>", "--retention", "workqueue")
    cli("consumer", "create", "ORDERS", "C")
    chance = random.Random(1)
    cli.publish(*[(f"orders.{n % 3}", chance.randbytes(60_000)) for n in range(MESSAGES)])
    cli("pub", "orders.last", "end", "-H", "Color: red", "-H", "Color: blue", "-J")
    cli("stream", "msg-rm", "ORDERS", "7", "-f")
    assert "[1]" in cli("consumer", "next", "ORDERS", "C").out
    state: dict[str, Any] = cli.json("stream", "info", "ORDERS")["state"]
    return state


def held(cli: Cli) -> list[Any]:
    return cli.lines("stream", "view", "ORDERS")


def move(cli: Cli, source: Path) -> None:
    """Delete the stream and restore it."""
    cli("stream", "rm", "ORDERS", "-f")
    assert f"with {MESSAGES - 1} messages" in cli("stream", "restore", str(source)).err


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_stream_comes_back_as_it_was(
    name: str, cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    target, before = tmp_path / "deep" / name, held(cli)
    consumer = cli.json("consumer", "info", "ORDERS", "C")

    said = cli("stream", "backup", "ORDERS", str(target)).err
    assert said.startswith(f"saved stream `ORDERS` with {MESSAGES - 1} messages, ")
    assert [target] == list(target.parent.iterdir())
    move(cli, target)

    assert before == held(cli)
    assert before[-1]["headers"] == {"Color": ["red", "blue"]}
    state = cli.json("stream", "info", "ORDERS")["state"]
    for figure in ("messages", "first_seq", "last_seq", "num_deleted"):
        assert orders[figure] == state[figure]
    restored = cli.json("consumer", "info", "ORDERS", "C")
    assert restored["num_pending"] == consumer["num_pending"]
    assert restored["ack_floor"]["stream_seq"] == consumer["ack_floor"]["stream_seq"]


def test_an_interrupted_backup_is_resumed_wherever_it_ended(
    cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    complete, before = tmp_path / "complete", held(cli)
    cli("stream", "backup", "ORDERS", str(complete))
    data = (complete / archive.DATA).read_bytes()
    resumed = 0

    for cut in (0, 9, len(data) // 3, len(data) // 2, len(data) - 5, len(data)):
        target = tmp_path / str(cut)
        target.mkdir()
        archive.partial(target / archive.META).write_text((complete / archive.META).read_text())
        archive.partial(target / archive.DATA).write_bytes(data[:cut])
        resumed += "resumed at" in cli("stream", "backup", "ORDERS", str(target), "--resume").err
        assert {archive.META, archive.DATA} == {path.name for path in target.iterdir()}
        assert "with 59 messages" in cli("stream", "restore", "--check", str(target)).err
    assert resumed >= 3
    move(cli, tmp_path / str(len(data) // 3))
    assert before == held(cli)


def test_a_partial_backup_of_another_stream_of_that_name_is_left(
    cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cli("stream", "backup", "ORDERS", str(target))
    for name in (archive.META, archive.DATA):
        (target / name).rename(archive.partial(target / name))
    cli("stream", "rm", "ORDERS", "-f")
    cli("stream", "create", "ORDERS", "--subjects", "orders.>")

    said = cli("stream", "backup", "ORDERS", str(target), "--resume").err
    assert said.startswith("saved stream `ORDERS` with 0 messages, ")


@pytest.mark.parametrize("name", [archive.META, archive.DATA])
def test_a_damaged_backup_is_refused_before_the_server_sees_it(
    name: str, cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    cli("stream", "backup", "ORDERS", str(tmp_path))
    cli("stream", "rm", "ORDERS", "-f")
    data = (tmp_path / name).read_bytes()

    for damaged in (b"", data[: len(data) // 2], data[:-200] + b"x" * 200):
        (tmp_path / name).write_bytes(damaged)
        error = cli.fails("stream", "restore", str(tmp_path))
        assert "damaged" in error or "does not describe a backup" in error
    assert cli.json("stream", "ls") == []
    assert "No such file" in cli.fails("stream", "restore", str(tmp_path / "nothing"))


def test_a_failed_backup_leaves_the_last_one_alone(
    cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    cli("stream", "backup", "ORDERS", str(tmp_path))
    before = (tmp_path / archive.META).read_text()

    assert "no stream `ORDER`" in cli.fails("stream", "backup", "ORDER", str(tmp_path))
    assert before == (tmp_path / archive.META).read_text()
    error = cli.fails("stream", "restore", str(tmp_path))
    assert error.endswith("(400/10130)\nhint: penstock stream rm deletes the existing one\n")


def test_all_streams_are_saved_and_restored_and_resumed(
    cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    cli("kv", "create", "CONFIG")
    cli("kv", "put", "CONFIG", "a", "1")

    documents = cli("stream", "backup", "--all", str(tmp_path), "--json").out
    assert documents.count('"stream"') == 2
    assert (
        "KV_CONFIG` is saved already"
        in cli("stream", "backup", "--all", str(tmp_path), "--resume").err
    )
    cli.run(_delete_all)
    cli("stream", "restore", str(tmp_path / "ORDERS"))
    said = cli("stream", "restore", "--all", str(tmp_path), "--resume").err
    assert said == ("restored stream `KV_CONFIG` with 1 message\nstream `ORDERS` exists already\n")
    assert cli("kv", "get", "CONFIG", "a", "--raw").out == "1\n"


async def _delete_all(js: JetStream) -> None:
    for name in await js.streams.names():
        await js.streams.delete(name)


def test_settings_may_change_on_the_way(cli: Cli, orders: dict[str, Any], tmp_path: Path) -> None:
    cli("stream", "backup", "ORDERS", str(tmp_path), "--no-consumers")
    cli("stream", "rm", "ORDERS", "-f")

    cli("stream", "restore", str(tmp_path), "--max-age", "7d")
    info = cli.json("stream", "info", "ORDERS")
    assert info["config"]["max_age"] == 7 * 86_400 * 10**9
    assert info["state"]["consumer_count"] == 0


def test_a_file_of_a_backup_can_be_unpacked_with_tar(
    cli: Cli, orders: dict[str, Any], tmp_path: Path
) -> None:
    cli("stream", "backup", "ORDERS", str(tmp_path / "b.tar"))
    with tarfile.open(tmp_path / "b.tar") as tar:
        tar.extractall(tmp_path / "folder", filter="data")

    assert cli.json("stream", "restore", str(tmp_path / "folder"), "--check")["held"] == 59
    meta = json.loads((tmp_path / "folder" / archive.META).read_text())
    assert meta["config"]["name"] == "ORDERS"


@pytest.mark.parametrize("words", [(), ("ORDERS",), ("--all",), ("A", "b", "--all")])
def test_what_to_save_and_where_to_must_be_clear(words: tuple[str, ...], cli: Cli) -> None:
    error = cli.fails("stream", "backup", *words, code=2)

    assert error == ("penstock: which stream, and where to?\nhint: NAME TARGET, or --all TARGET\n")
