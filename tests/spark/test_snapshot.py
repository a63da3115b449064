"""A table of states that changes a little at a time, on real Spark, cut off at every step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrameWriter

from penstock.cli import lake as lake_command
from penstock.errors import ConfigError
from penstock.spark.pipelines import snapshot, state
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.folder import LocalFolder
from penstock.spark.pipelines.snapshot import PARTS_MAX, SCHEMA, batches_of, merged_from, parts_of

Table = dict[str, tuple[int, str]]
"""How many events an aggregate has had, and its state."""
KEEP = 2


class PowerCut(Exception):
    """Ends a batch between two of its steps."""


def changed(table: Table, batch: int, numbers: range) -> Table:
    """Return the table behind a batch that changes some aggregates."""
    names = [f"order-{number}" for number in numbers]
    new = json.dumps({"batch": batch})
    return table | {name: (table.get(name, (0, ""))[0] + 1, new) for name in names}


def change(spark: Any, root: Path, table: Table, batch: int, numbers: range) -> Table:
    """Write such a batch, and return the same."""
    after = changed(table, batch, numbers)
    rows = [(f"order-{number}", batch, *after[f"order-{number}"]) for number in numbers]
    snapshot.write_batch(spark.createDataFrame(rows, SCHEMA), str(root), batch, keep=KEEP)
    return after


def table_of(root: Path) -> Table:
    """Return the newest snapshot, read without Spark."""
    if not batches_of(LocalFolder(root)):
        return {}
    rows = lake_command.query(root, "SELECT aggregate_id, events, state FROM lake").rows
    assert len(rows) == len({row[0] for row in rows})
    return {aggregate: (events, state) for aggregate, events, state in rows}


@contextmanager
def cut_off(monkeypatch: pytest.MonkeyPatch, steps: int) -> Iterator[None]:
    """Let so many steps that change the disk be done, and none after them."""
    left = [steps]

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise PowerCut
            left[0] -= 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(DataFrameWriter, "parquet", counted(DataFrameWriter.parquet))
        patch.setattr(Path, "replace", counted(Path.replace))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        yield


@pytest.fixture(scope="module")
def full(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Table]:
    """Return a table that is about to merge its parts, and what is in it."""
    root = tmp_path_factory.mktemp("snapshot")
    table = change(spark, root, {}, 0, range(200))
    for batch in range(1, PARTS_MAX):
        table = change(spark, root, table, batch, range(batch, batch + 3))
    return root, table


def test_rows_are_the_newest_of_each_aggregate(spark: Any, full: tuple[Path, Table]) -> None:
    root, table = full
    rows = snapshot.read_snapshot(spark, str(root)).collect()

    assert table == table_of(root)
    assert table == {row.aggregate_id: (row.events, row.state) for row in rows}
    assert PARTS_MAX == len(parts_of(LocalFolder(root)))


def test_it_is_listed_and_shown_without_spark(
    full: tuple[Path, Table], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(full[0])

    assert 0 == lake_command.run(["ls", root])
    assert "  200  " in capsys.readouterr().out.splitlines()[1]
    assert 0 == lake_command.run(["show", root, "--rows", "3"])
    shown = capsys.readouterr().out.splitlines()
    assert [f"{PARTS_MAX - 1}"] * 3 == [line.split("\t")[1] for line in shown[1:]]


def test_some_aggregates_are_looked_up(spark: Any, full: tuple[Path, Table]) -> None:
    root, table = full
    wanted = ["order-3", "order-150", "order-999"]
    ids = spark.createDataFrame([(name,) for name in wanted], "aggregate_id string")

    found = snapshot.look_up(snapshot.read_snapshot(spark, str(root)), ids).collect()

    assert {(name, *table[name]) for name in wanted if name in table} == {
        (row.aggregate_id, row.events, row.state) for row in found
    }


def test_a_batch_cut_off_at_any_step_and_done_again_is_done_once(
    spark: Any, full: tuple[Path, Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, before = full
    batch, numbers = PARTS_MAX, range(5, 8)
    after = changed(before, batch, numbers)
    seen = []
    for steps in count():
        root = tmp_path / str(steps)
        shutil.copytree(source, root)
        try:
            with cut_off(monkeypatch, steps):
                change(spark, root, before, batch, numbers)
            break
        except PowerCut:
            seen.append(table_of(root))
            change(spark, root, before, batch, numbers)
            assert after == table_of(root)
            assert _directories(root) == _named(root)

    # A part, a merged part, the manifest, and then what is old is removed.
    assert [before] * 3 == seen[:3]
    assert [after] * len(seen[3:]) == seen[3:] != []
    assert after == table_of(root)
    assert [200, 9] == [part.rows for part in parts_of(LocalFolder(root))]


def _directories(root: Path) -> set[str]:
    return {path.name for path in root.glob("part-*")}


def _named(root: Path) -> set[str]:
    """Return the parts that any snapshot has."""
    return {
        part.name
        for batch in batches_of(LocalFolder(root))
        for part in parts_of(LocalFolder(root), before=batch + 1)
    }


def test_a_query_that_is_started_anew_begins_with_an_empty_table(
    spark: Any, full: tuple[Path, Table], tmp_path: Path
) -> None:
    root = tmp_path / "table"
    shutil.copytree(full[0], root)

    after = change(spark, root, {}, 0, range(2))

    assert after == table_of(root)
    assert [0] == batches_of(LocalFolder(root))
    assert _directories(root) == _named(root)


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([100] * PARTS_MAX, PARTS_MAX),
        ([1] * (PARTS_MAX + 1), 0),
        ([1000, *[1] * PARTS_MAX], 1),
        ([1000, 500, *[100] * (PARTS_MAX - 1)], 0),
        ([10_000_000, 1_000_000, 100_000, 10_000, 1000, 100, 50, 20, 1], 7),
    ],
)
def test_small_parts_are_merged_and_much_larger_ones_left_alone(
    rows: list[int], first: int
) -> None:
    assert first == merged_from(rows)


def test_the_cost_of_many_batches_stays_in_proportion_to_what_they_change() -> None:
    parts, written = [200_000], 0
    for _ in range(10_000):
        parts.append(100)
        first = merged_from(parts)
        if first < len(parts):
            parts[first:] = [sum(parts[first:])]
            written += parts[-1]
        assert len(parts) <= PARTS_MAX + 1

    # A row that changed is written again a few times, and not once for each batch.
    assert written < 10 * 10_000 * 100


def test_a_snapshot_to_start_again_from_is_always_kept(spark: Any) -> None:
    config = PipelineConfig(
        pipeline="state",
        target="t",
        checkpoint="c",
        settings={"fold": "tests.spark.folds:total", "keep": 1},
    )
    with pytest.raises(ConfigError, match="`keep` must be at least 2"):
        state.start(spark, None, config)  # type: ignore[arg-type]
