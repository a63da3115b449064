"""What the streams of an account may take, beside those of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.jetstream.world import World

from penstock.config.accounts import JetStreamLimits

SMALL = 1000


def limited(directory: Path, **limits: int) -> World:
    world = World(directory)
    world.engine.quota.limits = JetStreamLimits(**limits)
    return world


@pytest.mark.parametrize(
    ("limits", "config", "error"),
    [
        ({"max_streams": 1}, {}, 10027),
        ({"max_consumers": 2}, {"max_consumers": 3}, 10026),
        ({"max_bytes_required": True}, {}, 10113),
        ({"memory_max_stream_bytes": 9}, {"max_bytes": 10}, 10122),
        ({"max_memory": SMALL}, {"max_bytes": SMALL + 1}, 10028),
        ({"max_memory": SMALL}, {"max_bytes": SMALL}, None),
    ],
)
def test_an_account_may_have_so_many_streams_and_so_large(
    tmp_path: Path, limits: dict[str, int], config: dict[str, int], error: int | None
) -> None:
    world = limited(tmp_path)
    world.create("FIRST", subjects=["first"])
    world.engine.quota.limits = JetStreamLimits(**limits)

    answer = world.call("STREAM.CREATE.S", name="S", storage="memory", **config)

    assert error == answer.get("error", {}).get("err_code")


def test_a_message_above_the_limit_of_the_account_is_refused(tmp_path: Path) -> None:
    world = limited(tmp_path, max_memory=SMALL)
    world.create("S", subjects=["s"])

    assert "error" not in world.ask("s", b"x" * (SMALL // 2))
    assert world.ask("s", b"x" * (SMALL // 2))["error"]["err_code"] == 10002


def test_a_consumer_gets_the_open_messages_that_the_account_allows(tmp_path: Path) -> None:
    world = limited(tmp_path, max_ack_pending=10, max_consumers=1)
    world.create("S", subjects=["s"])
    create = "CONSUMER.CREATE.S."

    def made(name: str, **config: int) -> dict[str, object]:
        fields = {"durable_name": name, "ack_policy": "explicit", **config}
        answer: dict[str, object] = world.call(create + name, stream_name="S", config=fields)
        return answer

    too_many = made("a", max_ack_pending=11)["error"]
    usual = made("a")["config"]
    second = made("b")["error"]

    assert isinstance(too_many, dict)
    assert too_many["err_code"] == 10121
    assert isinstance(usual, dict)
    assert usual["max_ack_pending"] == 10
    assert isinstance(second, dict)
    assert second["err_code"] == 10026
