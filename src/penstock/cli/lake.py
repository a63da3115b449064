"""`penstock lake`: inspect a lake, or a snapshot of states, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import JSON
from penstock.cli.runner import run_command, run_plain
from penstock.cli.terminal import table
from penstock.cli.values import read_positive, show_count, show_size
from penstock.errors import ClientError, ConfigError
from penstock.spark.pipelines.folder import LocalFolder
from penstock.spark.pipelines.snapshot import SnapshotPart, parts_of

if TYPE_CHECKING:
    from argparse import Namespace

SHOW = """\
SELECT sequence, time, topic, event_type, aggregate_id, payload
FROM (SELECT * FROM lake ORDER BY time DESC, sequence DESC LIMIT {rows})
ORDER BY time, sequence"""

SHOW_SNAPSHOT = """\
SELECT * FROM (SELECT * FROM lake ORDER BY sequence DESC LIMIT {rows}) ORDER BY sequence"""

ROWS = """\
SELECT * FROM read_parquet({files}, hive_partitioning = true, union_by_name = true,
    hive_types_autocast = false)"""

BATCHES = "topic=*/date=*/batch=*"

SNAPSHOT_ROWS = """\
SELECT * FROM read_parquet({files})
QUALIFY row_number() OVER (PARTITION BY aggregate_id ORDER BY events DESC) = 1"""


class Rows(NamedTuple):
    """A result: the names of its columns, and its rows."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]


def run(arguments: list[str]) -> int:
    """Run `penstock lake` and return the exit code."""
    return run_command("lake", VERBS, arguments, run_plain)


def list_parts(arguments: Namespace) -> int:
    """Print the parts of a lake."""
    found = listed(arguments.lake)
    if arguments.json:
        return _print(found, as_json=True)
    lines = [(*names, show_count(files), show_size(size)) for *names, files, size in found.rows]
    print(table([name.upper() for name in found.names], lines, left=2))
    return 0


def show(arguments: Namespace) -> int:
    """Print the newest rows."""
    return _print(shown(arguments.lake, arguments.rows), as_json=arguments.json)


def sql(arguments: Namespace) -> int:
    """Print the result of a query."""
    return _print(query(arguments.lake, arguments.query), as_json=arguments.json)


def listed(lake: Path) -> Rows:
    """Return each topic and day, or each part of a snapshot, with its files and bytes."""
    if parts := _parts(_check(lake)):
        found = [(part.name, show_count(part.rows), *_size(lake / part.name)) for part in parts]
        return Rows(("part", "rows", "files", "bytes"), found)
    days = sorted(lake.glob("topic=*/date=*"))
    names = [[part.split("=", 1)[1] for part in day.parts[-2:]] for day in days]
    found = [(topic, date, *_size(day)) for (topic, date), day in zip(names, days, strict=True)]
    return Rows(("topic", "date", "files", "bytes"), found)


def shown(lake: Path, rows: int) -> Rows:
    """Return the newest rows."""
    return query(lake, (SHOW_SNAPSHOT if _parts(lake) else SHOW).format(rows=rows))


def query(lake: Path, text: str) -> Rows:
    """Return the result of an SQL query."""
    try:
        import duckdb
    except ImportError:
        raise ConfigError("SQL needs DuckDB; hint: pip install duckdb") from None
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            connection.execute(f"CREATE VIEW lake AS {_rows(_check(lake))}")
            answer = connection.execute(text)
        except duckdb.Error as error:
            raise ConfigError(str(error)) from None
        return Rows([column[0] for column in answer.description or ()], answer.fetchall())


def _parts(lake: Path) -> list[SnapshotPart]:
    """Return the parts of the newest snapshot; none if the directory is not a snapshot."""
    return parts_of(LocalFolder(lake))


def _rows(lake: Path) -> str:
    """Return a query for the rows of a lake, or of the newest snapshot."""
    parts = _parts(lake)
    if not parts:
        _check_batches(lake)
    folders = [part.name for part in parts] or [BATCHES]
    files = [str(lake / folder / "*.parquet").replace("'", "''") for folder in folders]
    quoted = ", ".join(f"'{file}'" for file in files)
    return (SNAPSHOT_ROWS if parts else ROWS).format(files=f"[{quoted}]")


def _print(found: Rows, *, as_json: bool) -> int:
    """Print rows as JSON, or as tab-separated values below a line of names."""
    if as_json:
        documents = [dict(zip(found.names, map(_plain, row), strict=True)) for row in found.rows]
        print(json.dumps(documents, indent=2, ensure_ascii=False, default=str))
        return 0
    for row in (found.names, *found.rows):
        print("\t".join(str(_plain(value)).replace("\t", " ").replace("\n", " ") for value in row))
    return 0


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _size(folder: Path) -> tuple[int, int]:
    sizes = [file.stat().st_size for file in folder.glob("**/*.parquet")]
    return len(sizes), sum(sizes)


def _check(lake: Path) -> Path:
    scheme, colon, _ = str(lake).partition(":/")
    if colon and scheme.isalnum():
        raise ConfigError(
            f"`{lake}` is not in the local file system; hint: read it with Spark, "
            "by `penstock.spark.pipelines.lake.read_lake` or `snapshot.read_snapshot`"
        )
    if not lake.is_dir():
        raise ClientError(f"there is no lake at `{lake}`")
    return lake


def _check_batches(lake: Path) -> None:
    if any(lake.glob(f"{BATCHES}/*.parquet")):
        return
    if any(lake.glob("*.parquet")):
        raise ConfigError(
            f"`{lake}` is a table of Parquet files, and no lake; hint: `spark.read.parquet`"
        )
    raise ClientError(f"there are no messages in `{lake}` yet")


LAKE = argument("lake", metavar="LAKE", type=Path, doc="Directory of the lake.")

VERBS = (
    Verb(
        name="ls",
        aliases=("list",),
        summary="List topics and days, with their files and bytes; or the parts of a snapshot.",
        run=list_parts,
        arguments=(LAKE, JSON),
    ),
    Verb(
        name="show",
        summary="Print the newest rows.",
        run=show,
        arguments=(
            LAKE,
            argument(
                "--rows",
                metavar="NUMBER",
                type=read_positive,
                default=20,
                doc="Rows (default: 20).",
            ),
            JSON,
        ),
    ),
    Verb(
        name="sql",
        summary="Print the result of a query, as tab-separated values.",
        run=sql,
        arguments=(
            LAKE,
            argument("query", metavar="QUERY", doc="SQL query; the table is `lake`."),
            JSON,
        ),
    ),
)
