"""What a user has to be allowed, as the guide says, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers import PROGRAMS, ServerProcess
from tests.spark.conftest import Broker

from penstock.errors import PenstockError
from penstock.spark.options import parse_sink, parse_source
from penstock.spark.sink.publish import Window
from penstock.spark.sink.sink import Encoder
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Range
from penstock.spark.source.source import StreamReader

READER = (
    "$JS.API.STREAM.INFO.S",
    "$JS.API.STREAM.MSG.GET.S",
    "$JS.API.CONSUMER.CREATE.S.>",
    "$JS.API.CONSUMER.MSG.NEXT.S.*",
)
DELETE = "$JS.API.CONSUMER.DELETE.S.*"
EU = ("$JS.API.CONSUMER.CREATE.S.*.S.eu", *READER[:2], *READER[3:], DELETE)
USERS = {"admin": (">",), "reader": (*READER, DELETE), "keeper": READER, "eu": EU, "sink": ("S.a",)}


def config() -> str:
    """Return users with what each may publish; only its own inbox may any of them read."""
    users = "\n".join(
        f"{{user: {name}, password: x, permissions: {{publish: {list(allowed)}, "
        f"subscribe: ['{'>' if name == 'admin' else f'{name}.INBOX.>'}']}}}}"
        for name, allowed in USERS.items()
    )
    return f"authorization {{ users: [\n{users}\n] }}".replace("'", '"')


@pytest.fixture(scope="module", params=[program.name for program in PROGRAMS])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Return a server with users, and a stream of 20 messages on two subjects."""
    program = next(each for each in PROGRAMS if each.name == request.param)
    flags = ("-js", "-sd", str(tmp_path_factory.mktemp("jetstream")))
    with ServerProcess(program, config(), *flags) as server:
        admin = Broker(server.url.replace("//", "//admin:x@"))
        admin.create("S")
        admin.publish([(f"S.{region}", b"") for region in ("eu", "us")] * 10)
        yield server


def options(server: ServerProcess, user: str, **others: str) -> dict[str, str]:
    """Return the options of a user."""
    given = {"servers": server.url, "user": user, "password": "x", "inboxPrefix": f"{user}.INBOX"}
    return given | {"timeoutSeconds": "5", "retryTimeoutSeconds": "5"} | others


def read(server: ServerProcess, user: str, **others: str) -> int:
    """Return how many rows a user reads."""
    source = parse_source(options(server, user, stream="S", **others))
    driver = StreamReader(*source)
    try:
        created = driver.initialOffset()["created"]
    finally:
        driver.stop()
    return sum(batch.num_rows for batch in read_range(*source, created, Range(1, 20)))


@pytest.mark.parametrize("user", ["reader", "keeper"])
def test_a_user_with_a_private_inbox_reads(guarded: ServerProcess, user: str) -> None:
    """Whether it may delete its consumers or not."""
    assert 20 == read(guarded, user)
    assert 10 == read(guarded, user, subjects="S.us")


def test_a_user_may_be_allowed_some_subjects_only(guarded: ServerProcess) -> None:
    assert 10 == read(guarded, "eu", subjects="S.eu")
    with pytest.raises(PenstockError, match=r"(?i)permissions violation"):
        read(guarded, "eu", subjects="S.us")


def test_a_sink_needs_its_subjects_and_an_inbox(guarded: ServerProcess) -> None:
    connection, sink = parse_sink(
        options(guarded, "sink", subject="S.a", stream="S", messageIds="none")
    )
    with Window(connection, 10) as window:
        window.add(
            *Encoder(sink, "").encode(pa.record_batch({"data": [b"x"]}), window.reply_prefix)
        )
        window.flush()

        assert 1 == window.acked


def test_the_guide_says_the_same() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/spark.md").read_text()

    assert all(f'"{subject}"' in guide for subject in (*READER, DELETE))
