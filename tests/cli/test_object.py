"""`penstock object` against the real server and ours."""

from __future__ import annotations

import asyncio
import io
import random
from pathlib import Path

import nats
import pytest
from tests.cli.command import Cli

DATA = random.Random(7).randbytes(300_001)


@pytest.fixture
def bucket(cli: Cli, tmp_path: Path) -> Cli:
    """Return the command on a server that has a bucket with one object."""
    cli("object", "create", "FILES", "--storage", "memory", "--description", "for tests")
    (tmp_path / "data").write_bytes(DATA)
    said = cli("object", "put", "FILES", str(tmp_path / "data"), "--name", "data").err
    assert said == "stored `data`, 293 KiB\n"
    return cli


def test_a_file_comes_back_as_it_was(bucket: Cli, tmp_path: Path) -> None:
    target = tmp_path / "again"

    assert bucket("object", "get", "FILES", "data", "-o", str(target)).err.startswith("wrote ")
    assert target.read_bytes() == DATA
    error = bucket.fails("object", "get", "FILES", "data", "-o", str(target))
    assert f"cannot ask without a terminal: Replace the file `{target}`?" in error
    bucket("object", "get", "FILES", "data", "-o", str(target), "--force")


def test_other_clients_read_and_write_the_same_objects(bucket: Cli, tmp_path: Path) -> None:
    async def exchange() -> tuple[bytes | None, str]:
        client = await nats.connect(bucket.url)
        store = await client.jetstream().object_store("FILES")
        found = await store.get("data")
        await store.put("theirs", b"from another client")
        await client.close()
        return found.data, str(found.info.digest)

    data, digest = asyncio.run(exchange())
    assert data == DATA
    assert digest.startswith("SHA-256=")
    bucket("object", "get", "FILES", "theirs", "-o", str(tmp_path / "theirs"))
    assert (tmp_path / "theirs").read_bytes() == b"from another client"


def test_a_new_object_replaces_the_one_of_its_name(
    bucket: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Input:
        buffer = io.BytesIO(b"new")

    monkeypatch.setattr("sys.stdin", Input)
    bucket("object", "put", "FILES", "-", "--name", "data")

    info = bucket.json("object", "info", "FILES", "data")
    assert (info["size"], info["chunks"]) == (3, 1)
    # The chunks of the old one are gone: what is left is one chunk and one description.
    assert bucket.json("stream", "info", "OBJ_FILES")["state"]["messages"] == 2
    assert "standard input has no name" in bucket.fails("object", "put", "FILES", "-", code=2)


def test_objects_and_buckets_are_listed_and_described(bucket: Cli) -> None:
    (listed,) = bucket.json("object", "ls", "FILES")
    assert (listed["name"], listed["size"]) == ("data", len(DATA))
    assert bucket("object", "ls", "FILES").out.splitlines()[1].split()[:2] == ["data", "293"]
    (found,) = bucket.json("object", "ls")
    assert (found["bucket"], found["storage"]) == ("FILES", "memory")
    assert "  description  for tests\n" in bucket("object", "info", "FILES").out
    assert "  chunks    3\n" in bucket("object", "info", "FILES", "data").out


def test_changes_are_watched(bucket: Cli) -> None:
    bucket("object", "rm", "FILES", "data", "--force")

    assert bucket("object", "watch", "FILES", "--count", "1").out == "DEL data\n"
    assert bucket.lines("object", "watch", "FILES", "--count", "1")[0]["deleted"]


def test_objects_and_buckets_are_removed(bucket: Cli) -> None:
    assert "Delete `data`, 293 KiB?" in bucket.fails("object", "rm", "FILES", "data")
    bucket("object", "rm", "FILES", "data", "--force")
    assert bucket("object", "ls", "FILES").err == "no objects\n"
    assert bucket.fails("object", "info", "FILES", "data") == (
        "penstock: no object `data` in bucket `FILES`\n"
    )
    assert bucket.json("object", "rm", "FILES", "--force") == {"deleted": "FILES"}
    assert bucket("object", "ls").err == "no buckets\nhint: penstock object create BUCKET\n"


def test_a_bucket_that_is_not_there_brings_the_nearest_one(bucket: Cli) -> None:
    error = bucket.fails("object", "ls", "FILE")
    assert error == "penstock: no bucket `FILE`\nhint: did you mean `FILES`?\n"


def test_an_object_whose_chunks_are_damaged_is_not_kept(bucket: Cli, tmp_path: Path) -> None:
    bucket("stream", "msg-rm", "OBJ_FILES", "2", "--force")

    error = bucket.fails("object", "get", "FILES", "data", "-o", str(tmp_path / "x"))
    assert "object `data` is damaged: " in error
    assert ["data"] == [path.name for path in tmp_path.iterdir()]
