"""The pipeline `replay`: once, in order, and into the streams it began with."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.servers import ServerProcess
from tests.spark.conftest import Broker, rows, wait_until_forgotten
from tests.spark.events import AGGREGATES, publish

from penstock.cli import pipeline as pipeline_command
from penstock.errors import ClientError, ConfigError, PenstockError, StoreError
from penstock.spark.pipelines import replay, runner
from penstock.spark.pipelines.batches import Batch, ReplayLog
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.sink import stored


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock: the source and the sink are held to both servers elsewhere."""
    return servers["penstock"]


def test_replay_publishes_what_was_asked_for_in_order_and_once(
    broker: Broker, stream: str, run: Any, read: Any, tmp_path: Path
) -> None:
    broker.create(f"{stream}_again")
    publish(broker, stream, range(1, 101))
    run("archive")
    settings = {
        "lake": str(tmp_path / "archive"),
        "replace": [f"{stream}.", f"{stream}_again."],
    }

    # One type may stand for itself.
    said = [run("replay", rate=100_000, types=types, **settings) for types in (["paid"], "paid")]
    other = {"checkpoint": str(tmp_path / "other")}
    said.append(run("replay", types="shipped", **settings, **other))

    replayed = [json.loads(data) for _, _, data in rows(read(f"{stream}_again"))]
    assert set(range(1, 101, 2)) == {event["payload"]["n"] for event in replayed}
    assert 50 == len(replayed)
    assert [
        ["50 messages stored"],
        ["0 messages stored, 50 were stored by a replay before"],
        ["0 messages stored"],
    ] == said
    with pytest.raises(ConfigError, match="of a replay with another `types`, and says"):
        run("replay", **settings)
    with pytest.raises(ConfigError, match="is not of a replay"):
        run("replay", **settings, checkpoint=str(tmp_path / "archive-checkpoint"))
    settings["checkpoint"] = str(tmp_path / "third")
    with pytest.raises(Exception, match="no stream stores `it's"):
        run("replay", **settings | {"replace": [f"{stream}.", "it's."]})
    with pytest.raises(ConfigError, match="`replace` must be two"):
        run("replay", **settings | {"replace": "a"})
    before = broker.info(stream)["state"]["messages"]
    with pytest.raises(ConfigError, match=r"does not start with `orders\.`"):
        run("replay", **settings | {"replace": ["orders.", "replayed."]})
    assert before == broker.info(stream)["state"]["messages"]
    for aggregate in range(AGGREGATES):
        numbers = [e["payload"]["n"] for e in replayed if e["aggregate_id"] == f"order-{aggregate}"]
        assert sorted(numbers) == numbers


def test_a_replay_that_is_run_again_stores_nothing_twice(
    broker: Broker, stream: str, run: Any, read: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """However long ago it ran: the target has forgotten all ids, and other messages came."""
    window_s = 2
    again = f"{stream}_again"
    broker.create(again, duplicate_window=window_s * 10**9)
    settings = {"lake": str(tmp_path / "archive"), "replace": [f"{stream}.", f"{again}."]}
    publish(broker, stream, range(1, 101))
    run("archive")
    monkeypatch.setattr(replay, "BATCH_MESSAGES", 30)

    class PowerCut(Exception):
        """What ends the run between the last ack of a batch and its entry in the checkpoint."""

    def power_cut(log: Any, batch: Any, *told: Any) -> None:
        if batch.number == 1:
            raise PowerCut
        finish(log, batch, *told)

    finish = ReplayLog.finish
    monkeypatch.setattr(ReplayLog, "finish", power_cut)
    with pytest.raises(PowerCut):
        run("replay", **settings)
    monkeypatch.setattr(ReplayLog, "finish", finish)
    cut_at = broker.info(again)["state"]["messages"]
    file = tmp_path / "replay.yml"
    file.write_text(f"pipeline: replay\ncheckpoint: {tmp_path}/replay-checkpoint\n")
    pipeline_command.run(["status", "--config", str(file)])
    assert "replay: batch 1 begun, up to sequence " in capsys.readouterr().out
    # The look-back allows for clocks that differ by a minute, which is not to help here.
    monkeypatch.setattr(stored, "CLOCK_SKEW_S", 0.5)
    wait_until_forgotten(broker, again, window_s)
    said = [run("replay", **settings)]
    wait_until_forgotten(broker, again, window_s)
    publish(broker, stream, range(101, 111))
    run("archive")
    said.append(run("replay", **settings))

    assert 30 < cut_at < 70
    assert [
        [f"{100 - cut_at} messages stored, {cut_at} were stored by a replay before"],
        ["10 messages stored, 100 were stored by a replay before"],
    ] == said
    events = [json.loads(data)["payload"]["n"] for _, _, data in rows(read(again))]
    assert sorted(events) == list(range(1, 111))
    for aggregate in range(AGGREGATES):
        numbers = [n for n in events if n % AGGREGATES == aggregate]
        assert sorted(numbers) == numbers


@pytest.fixture
def replayed(
    broker: Broker, stream: str, run: Any, tmp_path: Path
) -> tuple[str, Callable[..., list[str]]]:
    """Return a target, and a function that replays into it an archive of 100 messages."""
    target = f"{stream}_again"
    broker.create(target)
    publish(broker, stream, range(1, 101))
    run("archive")
    settings = {"lake": str(tmp_path / "archive"), "replace": [f"{stream}.", f"{target}."]}
    return target, lambda **more: run("replay", **settings | more)


def test_a_new_checkpoint_replays_all_of_it_at_once(
    broker: Broker, replayed: Any, tmp_path: Path
) -> None:
    """The target still remembers the ids of the replay before."""
    target, replay_all = replayed

    said = [replay_all(), replay_all(), replay_all(checkpoint=str(tmp_path / "second"))]

    assert [
        ["100 messages stored"],
        ["0 messages stored, 100 were stored by a replay before"],
        ["100 messages stored"],
    ] == said
    assert 200 == broker.info(target)["state"]["messages"]


@pytest.mark.parametrize(
    ("is_made_anew", "text"),
    [(True, "was deleted and created again at 20"), (False, "was deleted;")],
)
def test_a_replay_does_not_go_on_into_another_stream(
    broker: Broker, replayed: Any, tmp_path: Path, is_made_anew: bool, text: str
) -> None:
    target, replay_all = replayed
    replay_all()

    broker.run(lambda js: js.streams.delete(target))
    if is_made_anew:
        broker.create(target)

    with pytest.raises(ClientError, match=rf"^stream `{target}`, .* {text}.* new `checkpoint`"):
        replay_all()
    if is_made_anew:
        assert 0 == broker.info(target)["state"]["messages"]
        assert ["100 messages stored"] == replay_all(checkpoint=str(tmp_path / "second"))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_target_made_anew_during_a_replay_is_noticed(
    broker: Broker, replayed: Any, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Behind a batch, or within one: before it is told to be done."""
    target, replay_all = replayed
    publish_batch, numbers = replay._publish, []

    def publish_and_lose(rows: Any, config: Any, begun: Batch, *more: Any) -> Any:
        numbers.append(begun.number)
        told = publish_batch(rows, config, begun, *more)
        if begun.number == batch:
            broker.run(lambda js: js.streams.delete(target))
            broker.create(target)
        return told

    monkeypatch.setattr(replay, "BATCH_MESSAGES", 40)
    monkeypatch.setattr(replay, "_publish", publish_and_lose)

    with pytest.raises(ClientError, match=rf"`{target}`, .* was deleted and created again"):
        replay_all()
    assert list(range(batch + 1)) == numbers


@pytest.mark.parametrize(
    "given",
    [
        "2026-11-15T08:00",
        "2026-11-15 08:00:00Z",
        "2026-11-15T09:00+01:00",
        1794729600000,
        datetime(2026, 11, 15, 8),
        datetime(2026, 11, 15, 8, tzinfo=UTC),
    ],
)
def test_a_time_may_be_written_in_any_way(given: Any) -> None:
    config = PipelineConfig(pipeline="replay", settings={"since": given})

    assert datetime(2026, 11, 15, 8, tzinfo=UTC) == config.time("since")
    assert config.time("until") is None
    day = PipelineConfig(pipeline="replay", settings={"since": date(2026, 11, 15)})
    assert datetime(2026, 11, 15, tzinfo=UTC) == day.time("since")


@pytest.mark.parametrize("given", ["soon", "2026-11-15T8", "latest", "", 17, True, 10**30])
def test_what_is_no_time_is_told(given: Any) -> None:
    config = PipelineConfig(pipeline="replay", settings={"since": given})

    with pytest.raises(ConfigError, match=r"^`since` must be a time such as `2026-.*: `"):
        config.time("since")


def test_a_replay_is_of_a_time(broker: Broker, replayed: Any, tmp_path: Path) -> None:
    target, replay_all = replayed
    at = datetime.fromisoformat(broker.info(target)["created"])
    earlier, later = at - timedelta(days=1), at + timedelta(days=1)

    said = [
        replay_all(checkpoint=str(tmp_path / str(number)), **times)
        for number, times in enumerate(
            (
                {"since": f"{later:%Y-%m-%dT%H:%M}"},
                {"until": f"{earlier:%Y-%m-%d}"},
                {"since": f"{earlier:%Y-%m-%dT%H:%M}", "until": later},
            )
        )
    ]

    assert [["0 messages stored"], ["0 messages stored"], ["100 messages stored"]] == said
    with pytest.raises(ConfigError, match="`since` must be a time"):
        replay_all(since="yesterday")


@pytest.mark.parametrize("text", ["", "v1\n{", "[]", '{"streams": 17}', "\udcff"])
def test_a_damaged_file_of_a_checkpoint_is_named(
    broker: Broker, replayed: Any, run: Any, tmp_path: Path, capsys: Any, text: str
) -> None:
    """In one sentence, by whoever needs it."""
    _, replay_all = replayed
    replay_all()
    file = tmp_path / "pipeline.yml"

    def archive() -> None:
        run("archive")

    def audited() -> None:
        run("audit", lake=str(tmp_path / "archive"))

    def status(pipeline: str) -> Callable[[], None]:
        source = f"{{servers: '{broker.url}', stream: {replayed[0].removesuffix('_again')}}}"
        config = f"checkpoint: {tmp_path}/{pipeline}-checkpoint\nsource: {source}\n"

        def ask() -> None:
            file.write_text(f"pipeline: {pipeline}\n{config}")
            if pipeline_command.run(["status", "--config", str(file)]):
                raise StoreError(capsys.readouterr().err)

        return ask

    for damaged, uses in (
        ("archive/_owner.json", (archive, audited)),
        ("archive-checkpoint/metadata", (archive,)),
        ("archive-checkpoint/offsets/0", (archive, audited, status("archive"))),
        ("archive-checkpoint/commits/0", (archive,)),
        ("replay-checkpoint/replay.json", (replay_all,)),
        ("replay-checkpoint/commits/0", (replay_all,)),
        ("replay-checkpoint/offsets/0", (status("replay"),)),
    ):
        path = tmp_path / damaged
        before = path.read_bytes()
        path.write_bytes(text.encode(errors="surrogateescape"))
        for use in uses:
            with pytest.raises(PenstockError) as raised:
                use()
            told = str(raised.value).strip()
            assert f"{path}` is damaged" in told or "the checkpoint is damaged, or of" in told
            assert told.count("\n") == told.count("\nhint: ")
        path.write_bytes(before)
    assert ["0 messages stored, 100 were stored by a replay before"] == replay_all()


def test_a_replay_that_was_stopped_goes_on_however_much_later(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    """The server has forgotten the ids by then."""
    target = f"{stream}_again"
    broker.create(target, duplicate_window=1_000_000_000)
    publish(broker, stream, range(1, 101))
    run("archive")

    def stored() -> int:
        return int(broker.info(target)["state"]["messages"])

    settings = {"lake": str(tmp_path / "archive"), "replace": [f"{stream}.", f"{target}."]}
    config = PipelineConfig(
        pipeline="replay",
        source={"servers": broker.url},
        checkpoint=str(tmp_path / "replay-checkpoint"),
        settings=settings | {"rate": 2},
    )
    told: list[str] = []
    runner.run(spark, config, say=told.append, stopping=lambda: stored() > 0)
    first = stored()
    wait_until_forgotten(broker, target, 1)
    said = run("replay", **settings)
    wait_until_forgotten(broker, target, 1)
    said += run("replay", **settings)

    assert told[-1].startswith("stopped: ")
    assert first < 100
    assert 100 == stored()
    assert "0 messages stored, 100 were stored by a replay before" == said[-1]
