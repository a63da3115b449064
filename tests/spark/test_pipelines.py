"""The ready pipelines, on real Spark."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, rows
from tests.spark.events import AGGREGATES, envelope, publish

from penstock.cli import lake as lake_command
from penstock.cli import pipeline as pipeline_command
from penstock.errors import ConfigError, PenstockError
from penstock.protocol.compression import compressor
from penstock.spark.pipelines import audit, lake, runner, snapshot
from penstock.spark.pipelines.config import load, parse
from penstock.spark.pipelines.folder import LocalFolder


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock: the source and the sink are held to both servers elsewhere."""
    return servers["penstock"]


def test_archive_brings_every_message_into_the_lake_once(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    ledger = publish(broker, stream, range(1, 101))
    said = run("archive", source={"maxMessagesPerTrigger": "60"})
    ledger += publish(broker, stream, range(101, 151))
    run("archive")
    # As after a crash between writing a batch and noting that it is done.
    newest = tmp_path / "archive-checkpoint" / "commits" / "2"
    newest.unlink()
    run("archive")

    archived = lake.read_lake(spark, table)
    assert ledger == rows(archived)
    first = archived.where("sequence = 7").first()
    assert ("order-2", "paid", '{"n":7}') == (first.aggregate_id, first.event_type, first.payload)
    assert "batch 0: 60 rows" in said[0]
    assert "behind by 0 messages" in said[-1]
    assert 2 == lake.compact(spark, table, batches_min=2)
    assert 0 == lake.compact(spark, table, batches_min=2)
    newest.unlink()
    run("archive")
    assert ledger == rows(lake.read_lake(spark, table))
    assert [(len(ledger),)] == lake_command.query(Path(table), "SELECT count(*) FROM lake").rows


def test_a_batch_written_again_by_other_settings_is_in_the_lake_once(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    """As after a crash between writing a batch and noting that it is done."""
    ledger = publish(broker, stream, range(1, 31))
    run("archive", source={"maxMessagesPerTrigger": "20"})
    (tmp_path / "archive-checkpoint" / "commits" / "1").unlink()
    ledger += publish(broker, stream, range(31, 41))
    run("archive", topic_tokens=1)

    assert ledger == rows(lake.read_lake(spark, str(tmp_path / "archive")))


def recreate(broker: Broker, stream: str) -> None:
    """Delete a stream, and create it again."""
    broker.run(lambda js: js.streams.delete(stream))
    broker.create(stream)


def test_an_archive_is_not_replaced_by_another(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    """As after the stream was made anew, and the hint of the error was followed by half."""
    ledger = publish(broker, stream, range(1, 31))
    run("archive", source={"maxMessagesPerTrigger": "10"})
    recreate(broker, stream)
    new = publish(broker, stream, range(1, 16))

    with pytest.raises(Exception, match=r"created again.*new checkpoint.*new `target`"):
        run("archive")
    with pytest.raises(ConfigError, match=rf"another query.*`{stream}` as it was created at 20"):
        run("archive", checkpoint=str(tmp_path / "new-checkpoint"))
    run("archive", checkpoint=str(tmp_path / "new-checkpoint"), target=str(tmp_path / "new"))

    assert ledger == rows(lake.read_lake(spark, str(tmp_path / "archive")))
    assert new == rows(lake.read_lake(spark, str(tmp_path / "new")))


def test_an_archive_leaves_out_nothing_when_its_source_changes(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    """Neither older messages of subjects that are added, nor that a stream is another one."""
    other = f"{stream}_other"
    both = {"stream": f"{stream}, {other}", "failOnDataLoss": "false"}
    broker.create(other)
    broker.publish([(f"{each}.a", b"") for each in (stream, other)] * 5)
    broker.publish([(f"{stream}.b", b"")] * 5)
    run("archive", source=both | {"subjects": f"{stream}.a, {other}.a"})
    with pytest.raises(Exception, match="`subjects` has `>` now"):
        run("archive", source=both)
    both["subjects"] = f"{stream}.a, {other}.a"
    broker.run(lambda js: js.streams.delete(other))
    broker.publish([(f"{stream}.a", b"")])
    run("archive", source=both)
    broker.create(other)
    broker.publish([(f"{other}.a", b"")] * 7)
    with pytest.raises(Exception, match=f"`{other}` was deleted and created again"):
        run("archive", source=both)

    found = lake.read_lake(spark, str(tmp_path / "archive")).select("stream", "sequence").collect()
    assert {stream: 6, other: 5} == Counter(row.stream for row in found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("pipeline", "settings"),
    [
        ("archive", {}),
        ("metrics", {}),
        ("state", {"fold": "tests.spark.folds:total"}),
        ("tests.spark.folds:large", {}),
    ],
)
def test_a_target_is_one_querys(
    broker: Broker, stream: str, run: Any, tmp_path: Path, pipeline: str, settings: dict[str, str]
) -> None:
    """Another pipeline is refused, and so is one whose checkpoint was lost."""
    publish(broker, stream, range(1, 4))
    settings |= {"target": str(tmp_path / "target")}
    run(pipeline, checkpoint=str(tmp_path / "first"), **settings)
    run(pipeline, checkpoint=str(tmp_path / "first"), **settings)
    files = sorted((tmp_path / "target").rglob("*"))

    with pytest.raises(ConfigError, match=r"is written by another query.*`target` of its own"):
        run(pipeline, checkpoint=str(tmp_path / "second"), **settings)
    assert files == sorted((tmp_path / "target").rglob("*"))


def test_a_target_that_holds_what_nobody_owns_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "something").touch()

    with pytest.raises(ConfigError, match="nothing says which query has written it"):
        run("archive")


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
def test_compressed_events_are_opened_like_all_others(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path, algorithm: Any
) -> None:
    compress = compressor(algorithm, bytes_min=150)
    assert compress is not None
    plain = [envelope(n, note="x" * 6000 * (n % 2)) for n in range(1, 21)]
    broker.publish([(f"{stream}.t", compress(event)) for event in plain])

    run("archive")
    run("state", fold="tests.spark.folds:total")

    archived = lake.read_lake(spark, str(tmp_path / "archive")).orderBy("sequence").collect()
    expected = [json.loads(event) for event in plain]
    assert [e["aggregate_id"] for e in expected] == [row.aggregate_id for row in archived]
    assert [e["payload"] for e in expected] == [json.loads(row.payload) for row in archived]
    assert [compress(event) for event in plain] == [bytes(row.data) for row in archived]
    states = snapshot.read_snapshot(spark, str(tmp_path / "state")).collect()
    assert 20 == sum(row.events for row in states)


def test_topics_that_look_like_numbers_stay_as_they_are(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    name = f"{stream}_numbers"
    broker.create(name, subjects=["1.*"])
    broker.publish([("1.10", b"a"), ("1.1", b"b")])

    run("archive", source={"stream": name})

    found = lake.read_lake(spark, str(tmp_path / "archive"))
    assert ["1.1", "1.10"] == sorted(row.topic for row in found.collect())


def test_a_topic_may_be_the_start_of_many_subjects(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    ledger = broker.fill(stream, 50)

    run("archive", topic_tokens=1)

    assert [f"topic={stream}"] == [path.name for path in (tmp_path / "archive").glob("topic=*")]
    assert ledger == rows(lake.read_lake(spark, str(tmp_path / "archive")))


def test_a_compaction_that_was_cut_off_is_finished(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    ledger = publish(broker, stream, range(1, 11))
    run("archive", source={"maxMessagesPerTrigger": "4"})
    root = tmp_path / "archive"

    def power_cut(path: Path, *arguments: Any, **options: Any) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(shutil, "rmtree", power_cut)
    with pytest.raises(OSError, match="power cut"):
        lake.compact(spark, str(root), batches_min=2)
    monkeypatch.undo()

    lake.recover(LocalFolder(root))
    assert ledger == rows(lake.read_lake(spark, str(root)))
    assert [] == list((root / "_compaction").glob("*.json"))


def test_audit_finds_what_is_missing_doubled_and_out_of_order(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    publish(broker, stream, range(1, 51))
    run("archive", source={"maxMessagesPerTrigger": "25"})
    table = tmp_path / "archive"
    handled = [(f"event-{n}", f"order-{n % AGGREGATES}", n) for n in range(1, 51)]
    handled[0], handled[5] = ("event-6", "order-1", 1), ("event-1", "order-1", 6)
    columns = "event_id string, aggregate_id string, position int"
    spark.createDataFrame(handled, columns).write.parquet(str(tmp_path / "handled"))

    (clean,) = run("audit", lake=str(table))
    (first, *_) = sorted(table.glob("topic=*/date=*/batch=0"))
    shutil.copytree(first, first.with_name("batch=7"))
    doubled = len(rows(spark.read.parquet(str(first))))
    (last, *_) = sorted(table.glob("topic=*/date=*/batch=1"))
    missing = len(rows(spark.read.parquet(str(last))))
    shutil.rmtree(last)
    html, document = tmp_path / "audit.html", tmp_path / "audit.json"
    (broken,) = run(
        "audit",
        lake=str(table),
        handled=str(tmp_path / "handled"),
        html=str(html),
        json=f"file:{document}",
    )

    assert (
        "50 published, 50 archived, 0 waiting, 0 removed, 0 handled, "
        "0 missing, 0 lost, 0 duplicated, 0 changed" in clean
    )
    assert (
        f"50 handled, {missing} missing, 0 lost, {doubled} duplicated, 0 changed, 0 foreign, "
        "0 unknown, 0 unhandled, 0 handled twice, 1 out of order" in broken
    )
    page = html.read_text()
    assert f"{missing} missing, {doubled} duplicated, 1 out of order</span>" in page
    assert "<td>order-1</td>" in page
    told = json.loads(document.read_text())
    assert (False, missing, doubled) == (
        told["clean"],
        told["totals"]["missing"],
        told["totals"]["duplicated"],
    )
    assert missing == sum(row["missing"] for row in told["aggregates"])
    assert all(row["first"] for row in told["aggregates"] if row["missing"] or row["duplicated"])


def test_an_archive_without_messages_is_audited_and_replayed(run: Any, tmp_path: Path) -> None:
    run("archive")

    (audited,) = run("audit", lake=str(tmp_path / "archive"))

    assert audited.startswith("0 aggregates: 0 published, 0 archived")
    assert ["0 messages stored"] == run("replay", lake=str(tmp_path / "archive"))


def test_audit_compares_what_can_be_compared(spark: Any) -> None:
    """Events published twice are one event; what was removed from the stream is no stranger's."""
    columns = "aggregate_id string, subject string, stream string, sequence bigint, data binary"

    def table(*rows: tuple[str, int, str]) -> Any:
        found = [(key, "s", "S", sequence, data.encode()) for key, sequence, data in rows]
        return spark.createDataFrame(found, columns)

    # Of sequences 1 to 10, some were removed; the archive is past 8.
    published = table(
        *(("a", 3, "x"), ("a", 4, "x"), ("a", 5, "y")),
        *(("b", 6, "z"), ("b", 8, "w"), ("b", 9, "v")),
    )
    published = published.withColumn("event_id", published.data.cast("string"))
    archived = table(
        ("a", 1, "old"),
        ("a", 3, "x"),
        ("a", 4, "x"),
        ("a", 5, "CHANGED"),
        ("b", 6, "z"),
        ("b", 7, "deleted"),
        ("b", 11, ""),
    )
    bounds = audit.bounds_of(spark, [audit.Bounds("S", 3, 10, 8)])
    handled = spark.createDataFrame(
        [("x", "a", 1), ("y", "a", 2), ("y", "a", 3), ("w", "b", 4), ("v", "b", 5)],
        "event_id string, aggregate_id string, position int",
    )

    report = audit.compare(published, archived, handled, bounds)

    found = {row.aggregate: row.asDict() for row in report.collect()}
    clean = dict.fromkeys(audit.FINDINGS, 0)
    assert clean | {"changed": 1, "handled twice": 1} == {
        kind: found["a"][kind] for kind in audit.FINDINGS
    }
    assert clean | {"missing": 1, "foreign": 1, "unhandled": 1} == {
        kind: found["b"][kind] for kind in audit.FINDINGS
    }
    # Published, archived, waiting, removed, handled.
    assert [(3, 4, 0, 1, 3), (3, 3, 1, 1, 2)] == [
        tuple(found[each][kind] for kind in audit.COUNTS) for each in ("a", "b")
    ]
    assert [5, 6] == [found[each]["first"] for each in ("a", "b")], "nobody handled 6"
    assert not audit.is_clean(report)
    columns = ("aggregate_id", "subject", "stream", "sequence", "data")
    whole = published.select(*columns).union(table(("b", 7, "deleted")).select(*columns))
    assert audit.is_clean(audit.compare(published, whole, None, bounds))


def test_audit_counts_what_is_neither_in_the_stream_nor_in_the_lake(spark: Any) -> None:
    """From the first that is known, up to where the archive is, in parts of a large stream."""
    known = spark.range(9_000, 40_001).selectExpr(
        "'k' AS aggregate_id", "'s' AS subject", "'S' AS stream", "id AS sequence", "'' AS data"
    )
    events = known.withColumn("event_id", known.data)

    def found(condition: str, **bounds: Any) -> list[tuple[int, int, int]]:
        left = known.where(condition)
        table = audit.bounds_of(spark, [audit.Bounds("S", 9_000, 40_000, 40_000, **bounds)])
        report = audit.compare(events.where("sequence < 20000").where(condition), left, None, table)
        rows = report.where("lost + unknown > 0").collect()
        return [(row.lost, row.unknown, row["first"]) for row in rows]

    assert [] == found("true")
    assert [(1, 0, 20_000)] == found("sequence <> 20005")
    assert [(10_000, 0, 20_000)] == found("sequence DIV 10000 <> 2")
    assert [(5, 0, 39_996)] == found("sequence < 39996")
    assert [] == found("sequence > 9005"), "it may have begun there"
    filtered = {"begin": 9_000, "is_filtered": True}
    assert [(0, 6, 9_000)] == found("sequence > 9005", **filtered)
    assert [] == found("sequence > 9005", others=6, **filtered)
    assert [(0, 31_001, 9_000)] == found("false", **filtered)
    assert [] == found("sequence > 9005", others=None, **filtered)
    topic = known.where("sequence % 100 = 0")
    bounds = audit.bounds_of_topics(topic)
    assert audit.is_clean(audit.compare(events.where("sequence % 100 = 0"), topic, None, bounds))


def test_audit_says_what_was_removed_before_it_was_archived(
    broker: Broker, stream: str, run: Any, tmp_path: Path
) -> None:
    """Within the stream, where the archive says nothing, as no reader can tell why it is gone."""
    table, document = str(tmp_path / "archive"), tmp_path / "audit.json"
    broker.publish([(f"{stream}.keep", b"")] + [(f"{stream}.a", b"")] * 10)
    run("archive")
    run("archive", source={"subjects": f"{stream}.a"}, target=f"{table}-a", checkpoint=f"{table}-c")
    broker.publish([(f"{stream}.a", b"")] * 20 + [(f"{stream}.keep", b"")])
    broker.run(lambda js: js.streams.purge(stream, filter=f"{stream}.a"))
    broker.publish([(f"{stream}.a", b"")] * 3)
    run("archive")
    run("archive", source={"subjects": f"{stream}.a"}, target=f"{table}-a", checkpoint=f"{table}-c")

    (all_of_it,) = run("audit", lake=table, json=str(document))
    (row,) = json.loads(document.read_text())["aggregates"]
    (some,) = run(
        "audit", source={"subjects": f"{stream}.a"}, lake=f"{table}-a", json=str(document)
    )
    (other,) = json.loads(document.read_text())["aggregates"]

    assert "5 published, 15 archived, 0 waiting, 10 removed, 0 handled, 0 missing, 20 lost" in (
        all_of_it
    )
    assert (f"{stream}, within 1 to 35", 20, 0) == (row["aggregate"], row["lost"], row["unknown"])
    assert row["first"] in range(1, 13)
    assert "3 published, 13 archived, 0 waiting, 10 removed, 0 handled, 0 missing, 0 lost" in some
    assert (0, 20) == (other["lost"], other["unknown"])


def test_audit_tells_what_retention_removed_from_what_was_lost(
    broker: Broker, stream: str, run: Any, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    publish(broker, stream, range(1, 31))
    run("archive")
    broker.run(lambda js: js.streams.delete_message(stream, 20))
    broker.run(lambda js: js.streams.purge(stream, seq=11))
    publish(broker, stream, range(31, 41))
    (well,) = run("audit", lake=table)
    # The archive has not come to these yet, and never will.
    broker.run(lambda js: js.streams.purge(stream, seq=36))
    document = tmp_path / "audit.json"
    (lost,) = run("audit", lake=table, json=str(document))

    assert "29 published, 30 archived, 10 waiting, 11 removed, 0 handled, 0 missing, 0 lost" in well
    assert "5 published, 30 archived, 5 waiting, 30 removed, 0 handled, 0 missing, 5 lost" in lost
    (row,) = json.loads(document.read_text())["aggregates"]
    assert (f"{stream}, from 31 to 35", 31, 5) == (row["aggregate"], row["first"], row["lost"])


def test_audit_finds_payloads_that_differ_from_their_events(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path
) -> None:
    publish(broker, stream, range(1, 11))
    run("archive", topic_tokens=1)
    (folder,) = (tmp_path / "archive").glob("topic=*/date=*/batch=0")
    damaged = spark.read.parquet(str(folder)).selectExpr(
        "* EXCEPT (payload)", "if(sequence = 4, null, payload) AS payload"
    )
    damaged.write.parquet(str(tmp_path / "damaged"))
    shutil.rmtree(folder)
    (tmp_path / "damaged").rename(folder)

    (found,) = run("audit", lake=str(tmp_path / "archive"))

    assert "0 missing, 0 lost, 0 duplicated, 1 changed, 0 foreign" in found


def test_metrics_count_every_window(
    broker: Broker, stream: str, spark: Any, read: Any, run: Any, tmp_path: Path
) -> None:
    from penstock.spark.pipelines.metrics import measure

    publish(broker, stream, range(1, 101))
    run("metrics")

    short = measure(read(stream), "100 milliseconds", "1 minute").collect()
    assert 100 == sum(row.messages for row in short)
    assert all(row.messages * 10 == round(row.messages_per_second) for row in short)
    figures = measure(read(stream), "1 day", "1 minute").orderBy("topic").collect()
    assert [50, 50] == [row.messages for row in figures]
    assert all(row.latency_ms_50 <= row.latency_ms_99 for row in figures)
    # A window is written once no message can fall into it any more, so here none is.
    assert 0 == spark.read.parquet(str(tmp_path / "metrics")).count()


def test_state_is_folded_in_order_and_once(
    broker: Broker, stream: str, spark: Any, run: Any, tmp_path: Path
) -> None:
    def fold() -> None:
        run("state", fold="tests.spark.folds:total", source={"maxMessagesPerTrigger": "30"})

    publish(broker, stream, range(1, 51))
    fold()
    (tmp_path / "state-checkpoint" / "commits" / "1").unlink()
    publish(broker, stream, range(51, 61))
    fold()

    states = snapshot.read_snapshot(spark, str(tmp_path / "state")).collect()
    assert {f"order-{n}" for n in range(AGGREGATES)} == {row.aggregate_id for row in states}
    for row in states:
        numbers = [n for n in range(1, 61) if f"order-{n % AGGREGATES}" == row.aggregate_id]
        assert {"total": sum(numbers), "seen": numbers} == json.loads(row.state)
        assert len(numbers) == row.events


def test_bench_history_compares_the_newest_with_the_usual(
    spark: Any, tmp_path: Path, run: Any
) -> None:
    history = tmp_path / "bench.jsonl"
    results = [
        {"time": f"2026-11-1{day}", "machine": "m", "server": "s", "scenario": "pub", "rate": rate}
        for day, rate in enumerate([100.0, 110.0, 90.0, 50.0])
    ]
    history.write_text("".join(json.dumps(result) + "\n" for result in results))

    run("bench-history", history=str(history), page=str(tmp_path / "bench.html"))

    (row,) = spark.read.parquet(str(tmp_path / "bench-history")).collect()
    assert (4, 50.0, 100.0, -0.5) == (row.runs, row.rate, row.usual, row.change)
    page = (tmp_path / "bench.html").read_text()
    assert "<h2>pub on s</h2>" in page
    assert ["100", "110", "90", "50"] == re.findall(r"<title>2026-11-1\d: (\d+)</title>", page)


def test_a_users_own_function_is_a_pipeline(
    broker: Broker, stream: str, spark: Any, run: Any, tmp_path: Path
) -> None:
    broker.fill(stream, 20)

    run("tests.spark.folds:large", target=str(tmp_path / "own"), checkpoint=str(tmp_path / "c"))

    assert [3, 13] == sorted(
        row.sequence for row in spark.read.parquet(str(tmp_path / "own")).collect()
    )


def test_status_tells_how_far_a_pipeline_is(
    broker: Broker, stream: str, run: Any, tmp_path: Path, capsys: Any
) -> None:
    publish(broker, stream, range(1, 11))
    run("archive")
    publish(broker, stream, range(11, 16))
    file = tmp_path / "archive.yml"
    file.write_text(
        f"pipeline: archive\nsource: {{servers: '{broker.url}', stream: {stream}}}\n"
        f"checkpoint: {tmp_path}/archive-checkpoint\ntarget: {tmp_path}/archive\n"
    )

    assert 0 == pipeline_command.run(["status", "--config", str(file)])
    assert "batch 0 finished, up to sequence 10" in (out := capsys.readouterr().out)
    assert "behind by 5 messages" in out
    assert 0 == pipeline_command.run(["status", "--config", str(file), "--json"])
    assert {"streams": {stream: 10}, "behind_messages": 5}.items() <= json.loads(
        capsys.readouterr().out
    ).items()
    assert 0 == lake_command.run(["ls", str(tmp_path / "archive")])
    assert 3 == len(capsys.readouterr().out.splitlines())
    assert 0 == lake_command.run(["show", str(tmp_path / "archive"), "--rows", "2"])
    assert [f"{n}" for n in (9, 10)] == [
        line.split("\t")[0] for line in capsys.readouterr().out.splitlines()[1:]
    ]
    assert 0 == lake_command.run(["show", str(tmp_path / "archive"), "--rows", "2", "--json"])
    assert [9, 10] == [row["sequence"] for row in json.loads(capsys.readouterr().out)]


def test_status_on_a_work_queue_counts_what_its_workers_left(
    broker: Broker, stream: str, run: Any, spark: Any, tmp_path: Path, capsys: Any
) -> None:
    queue = f"{stream}_queue"
    broker.create(queue, retention="workqueue", allow_direct=True)
    ledger = publish(broker, queue, range(1, 11))
    run("archive", source={"stream": queue})
    publish(broker, queue, range(11, 21))
    for sequence in range(1, 18):
        broker.run(lambda js, n=sequence: js.streams.delete_message(queue, n))
    file = tmp_path / "archive.yml"
    file.write_text(
        f"pipeline: archive\nsource: {{servers: '{broker.url}', stream: {queue}}}\n"
        f"checkpoint: {tmp_path}/archive-checkpoint\n"
    )

    assert 0 == pipeline_command.run(["status", "--config", str(file)])
    assert "up to sequence 10 of" in (out := capsys.readouterr().out)
    assert "behind by 3 messages" in out
    assert ledger == rows(lake.read_lake(spark, str(tmp_path / "archive")))


def test_figures_of_two_pipelines_are_stored_side_by_side(
    broker: Broker, stream: str, read: Any, run: Any, tmp_path: Path
) -> None:
    """Also if they are of the same windows: one is not taken for the other."""
    broker.create(f"{stream}_figures")
    settings = {
        "subject": f"{stream}_figures.all",
        "window": "100 milliseconds",
        "lateness": "0 seconds",
    }
    # A window ends when a run has seen a later message.
    for first in (1, 11, 21):
        publish(broker, stream, range(first, first + 10))
        published_s = time.time()
        for checkpoint in ("one", "other"):
            run("metrics", checkpoint=str(tmp_path / checkpoint), **settings)
        wait_until(lambda since=published_s: time.time() > since + 0.2)

    figures = [json.loads(data) for _, _, data in rows(read(f"{stream}_figures"))]
    counts = Counter((each["start"], each["topic"]) for each in figures)
    assert {2} == set(counts.values())
    assert 20 <= sum(each["messages"] for each in figures) / 2 <= 30


def test_what_yaml_reads_as_no_text_is_text_to_spark(tmp_path: Path) -> None:
    file = tmp_path / "archive.yml"
    file.write_text(
        "pipeline: archive\n"
        "source: {failOnDataLoss: false, startingPosition: 1, subjects: [a, b.>],\n"
        "         endingPosition: {A: 17, B: 2026-11-15T08:00:00Z}}\n"
        "spark: {spark.ui.enabled: false, spark.driver.cores: 2}\n"
    )

    config = load(file)

    assert {
        "failOnDataLoss": "false",
        "startingPosition": "1",
        "subjects": "a, b.>",
        "endingPosition": '{"A": "17", "B": "2026-11-15T08:00:00+00:00"}',
    } == config.source
    assert {"spark.ui.enabled": "false", "spark.driver.cores": "2"} == config.spark


def test_the_pipeline_may_be_named_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "orders.yml"
    file.write_text("source: {stream: ORDERS}\n")

    assert "archive" == load(file, "archive").pipeline
    with pytest.raises(ConfigError, match="`pipeline` is missing"):
        load(file)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"pipline": "archive"}, "`pipline` is no setting of a pipeline; did you mean `pipeline`?"),
        ({"source": {}}, "`pipeline` is missing"),
        ({"pipeline": "archive", "source": []}, "`source` must be a mapping"),
        ({"pipeline": "archive", "trigger": "soon"}, "`trigger` must be a duration such as"),
        ({"pipeline": "archive", "trigger": 5}, "`trigger` must be a duration such as .*: `5`"),
        ({"pipeline": "archive", "source": {"password": 83}}, "`password` is no text .* quote it"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(values)


@pytest.mark.parametrize(
    ("pipeline", "values", "text"),
    [
        ("archve", {}, "there is no pipeline `archve`; did you mean `archive`?"),
        ("archive", {"compact": 1}, "`archive` has no setting `compact`; valid: `topic_tokens`"),
        ("archive", {"target": ""}, "the pipeline `archive` needs `target`"),
        ("archive", {"compact_batches": "many"}, "`compact_batches` must be a whole number: `man"),
        ("archive", {"compact_batches": True}, "`compact_batches` must be a whole number: `True`"),
        ("metrics", {"window": "soon"}, "`window` must be a duration such as `10 seconds`: `soon`"),
        ("metrics", {"window": "0 seconds"}, "`window` must be longer than nothing: `0 seconds`"),
        ("metrics", {"lateness": "-1 minute"}, "`lateness` must be a duration such as"),
        ("replay", {"lake": "/tmp", "tasks": 0}, "`tasks` must be at least 1: 0"),
        ("replay", {"lake": "/nowhere"}, "there is no lake at `/nowhere`"),
        ("state", {"fold": "nowhere:f"}, "`nowhere:f` cannot be found"),
    ],
)
def test_a_wrong_setting_names_itself(
    run: Any, pipeline: str, values: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        run(pipeline, **values)


def test_every_pipeline_is_listed_and_described(capsys: Any) -> None:
    from penstock.spark.pipelines.table import PIPELINES

    assert 0 == pipeline_command.run(["list"])
    assert len(PIPELINES) == len(capsys.readouterr().out.splitlines())
    for name in PIPELINES:
        assert 0 == pipeline_command.run(["describe", name])
    assert audit.SETTINGS["lake"] in capsys.readouterr().out


def test_the_cause_of_an_error_of_sparks_is_one_sentence(stream: str, run: Any) -> None:
    config = {"source": {"stream": f"{stream}_misspelt"}}
    with pytest.raises(PenstockError, match=r"^there is no stream `\w+_misspelt`; hint: .*\?$"):
        run("archive", **config)
    with pytest.raises(Exception, match="there is no stream") as raised:
        run("metrics", subject="figures", **config)

    cause = runner.cause_of(raised.value)
    assert re.fullmatch(r"there is no stream `\w+_misspelt`; hint: .*\?", str(cause))
    other = ValueError("something else")
    assert other is runner.cause_of(other)
    sparks = ValueError(
        "Job aborted.\n\tat org.apache.Spark\n"
        "Caused by: java.io.IOException: No space left on device\n\tat java.base"
    )
    assert "Spark has failed: No space left on device" == str(runner.cause_of(sparks))
