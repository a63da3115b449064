"""`penstock kv` against the real server and ours."""

from __future__ import annotations

import io
import json
import signal

import pytest
from tests.cli.command import Cli


@pytest.fixture
def bucket(cli: Cli) -> Cli:
    """Return the command on a server that has a bucket."""
    cli("kv", "create", "config", "--history", "5", "--storage", "memory")
    return cli


def test_a_bucket_that_is_created_is_listed(cli: Cli) -> None:
    created = cli.json(
        *("kv", "add", "config", "--history", "3", "--ttl", "1h", "--max-bytes", "1MB"),
        *("--description", "settings"),
    )

    assert created == {
        "bucket": "config",
        "description": "settings",
        "values": 0,
        "bytes": 0,
        "history": 3,
        "ttl_ns": 3_600_000_000_000,
        "max_bytes": 1024 * 1024,
        "storage": "file",
        "replicas": 1,
        "stream": "KV_config",
    }
    cli("kv", "put", "config", "a", "1")
    header, row = cli("kv", "ls").out.splitlines()
    assert header.split() == ["BUCKET", "VALUES", "HISTORY", "TTL", "SIZE", "STORAGE", "LAST"]
    assert row.split()[:4] == ["config", "1", "3", "1h"]
    assert [each["bucket"] for each in cli.json("kv", "list")] == ["config"]
    assert "  ttl          1h\n" in cli("kv", "info", "config").out


def test_a_stream_is_no_bucket(cli: Cli) -> None:
    cli("stream", "create", "ORDERS", "--subjects", "orders.>")

    result = cli("kv", "ls")
    assert result.out == ""
    assert result.err == "no buckets\nhint: penstock kv create BUCKET\n"


def test_a_value_is_put_and_got(bucket: Cli) -> None:
    assert bucket("kv", "put", "config", "app.name", "penstock").err == (
        "`app.name` is at revision 1\n"
    )

    result = bucket("kv", "get", "config", "app.name")
    assert result.out == "penstock\n"
    assert result.err.startswith("app.name  revision 1  20")
    assert bucket("kv", "get", "config", "app.name", "--raw").out == "penstock\n"
    entry = bucket.json("kv", "get", "config", "app.name")
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "bucket": "config",
        "key": "app.name",
        "revision": 1,
        "operation": "PUT",
        "payload": "penstock",
    }


def test_a_value_can_come_from_standard_input(bucket: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("put", "config", "k"), ("put", "config", "k", "-")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
        bucket("kv", *words)
        assert bucket.json("kv", "get", "config", "k")["payload_base64"] == "/wA="


def test_an_earlier_revision_can_be_got(bucket: Cli) -> None:
    bucket("kv", "put", "config", "a", "1")
    bucket("kv", "put", "config", "a", "2")
    bucket("kv", "put", "config", "b", "3")

    assert bucket("kv", "get", "config", "a", "--revision", "1", "--raw").out == "1\n"
    error = bucket.fails("kv", "get", "config", "a", "--revision", "3")
    assert "no key `a` in bucket `config` at revision 3" in error


def test_a_key_is_only_created_once(bucket: Cli) -> None:
    assert bucket.json("kv", "create-key", "config", "a", "1") == {"key": "a", "revision": 1}

    error = bucket.fails("kv", "create-key", "config", "a", "2")
    assert error == "penstock: key `a` already exists, at revision 1\n"
    bucket("kv", "del", "config", "a")
    bucket("kv", "create-key", "config", "a", "3")
    assert bucket("kv", "get", "config", "a", "--raw").out == "3\n"


def test_an_update_needs_the_revision_it_is_made_of(bucket: Cli) -> None:
    bucket("kv", "put", "config", "a", "1")

    bucket("kv", "update", "config", "a", "2", "--revision", "1")
    error = bucket.fails("kv", "update", "config", "a", "3", "--revision", "1")
    assert error == "penstock: key `a` is at revision 2, not 1\n"
    assert "missing: --revision" in bucket.fails("kv", "update", "config", "a", "3", code=2)


def test_a_deleted_key_has_a_history_and_a_purged_one_has_not(bucket: Cli) -> None:
    bucket("kv", "put", "config", "a", "1")
    bucket("kv", "del", "config", "a")

    error = bucket.fails("kv", "get", "config", "a")
    assert error == "penstock: key `a` was deleted at revision 2\n"
    rows = bucket("kv", "history", "config", "a").out.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [["1", "PUT"], ["2", "DEL"]]
    assert "cannot ask without a terminal" in bucket.fails("kv", "purge", "config", "a")
    bucket("kv", "purge", "config", "a", "--force")
    entries = bucket.json("kv", "history", "config", "a")
    assert [entry["operation"] for entry in entries] == ["PURGE"]


def test_a_delete_can_insist_on_a_revision(bucket: Cli) -> None:
    bucket("kv", "put", "config", "a", "1")

    error = bucket.fails("kv", "del", "config", "a", "--revision", "7")
    assert error == "penstock: key `a` is at revision 1, not 7\n"
    bucket("kv", "del", "config", "a", "--revision", "1")


def test_keys_are_those_with_a_value(bucket: Cli) -> None:
    for key in ("a.x", "a.y", "b"):
        bucket("kv", "put", "config", key, "1")
    bucket("kv", "del", "config", "a.y")

    assert bucket("kv", "keys", "config").out == "a.x\nb\n"
    assert bucket.json("kv", "keys", "config", "a.*") == ["a.x"]
    assert bucket.json("kv", "keys", "config", "b", "a.>") == ["a.x", "b"]
    assert bucket.json("kv", "keys", "config", "none.>") == []


def test_a_watch_shows_what_is_there_and_then_what_changes(bucket: Cli) -> None:
    bucket("kv", "put", "config", "a", "1")
    bucket("kv", "put", "config", "b", "2")

    assert bucket("kv", "watch", "config", "--count", "2").out == "[1] PUT a: 1\n[2] PUT b: 2\n"
    with bucket.start("kv", "watch", "config", "b", "c", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["revision"] == 2
        bucket("kv", "put", "config", "c", "3")
        bucket("kv", "del", "config", "b")
        changes = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(each["key"], each["operation"]) for each in changes] == [
            ("c", "PUT"),
            ("b", "DEL"),
        ]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
        assert process.wait(timeout=20) == 0


def test_a_watch_can_start_with_the_history(bucket: Cli) -> None:
    for value in ("1", "2", "3"):
        bucket("kv", "put", "config", "a", value)

    assert bucket("kv", "watch", "config", "--history", "--raw", "--count", "3").out == "1\n2\n3\n"


@pytest.mark.parametrize("words", [("info",), ("keys",), ("rm",), ("put", "a", "1"), ("get", "a")])
def test_a_bucket_that_is_not_there_brings_the_nearest_one(
    words: tuple[str, ...], bucket: Cli
) -> None:
    verb, *rest = words

    error = bucket.fails("kv", verb, "cofnig", *rest)
    assert error == "penstock: no bucket `cofnig`\nhint: did you mean `config`?\n"


def test_a_key_that_is_not_there_brings_the_nearest_one(bucket: Cli) -> None:
    bucket("kv", "put", "config", "app.name", "1")

    error = bucket.fails("kv", "get", "config", "app.nmae")
    assert error == (
        "penstock: no key `app.nmae` in bucket `config`\nhint: did you mean `app.name`?\n"
    )
    assert "no key `x`" in bucket.fails("kv", "history", "config", "x")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("create", "a.b"), "`a.b` is not a valid bucket name"),
        (("create", "a", "--history", "65"), "between 1 and 64 revisions"),
        (("put", "config", "a..b", "1"), "`a..b` is not a valid key"),
        (("keys", "config", "a b"), "`a b` is not a valid pattern of keys"),
    ],
)
def test_names_that_cannot_be_are_refused(
    words: tuple[str, ...], complaint: str, bucket: Cli
) -> None:
    assert complaint in bucket.fails("kv", *words)


def test_a_bucket_is_removed(bucket: Cli) -> None:
    bucket("kv", "put", "config", "a", "1")

    assert "Delete bucket `config` with 1 value?" in bucket.fails("kv", "rm", "config")
    assert bucket.json("kv", "rm", "config", "--force") == {"deleted": "config"}
    assert bucket.json("kv", "ls") == []
