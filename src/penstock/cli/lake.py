"""`penstock lake`: look into a lake, or a snapshot of states, without Spark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, PenstockError
from penstock.spark.pipelines.snapshot import parts_of


def run(arguments: list[str]) -> int:
    """Run one of the subcommands."""
    options = _parser().parse_args(arguments)
    try:
        print(options.command(options), end="")
    except PenstockError as error:
        print(f"penstock lake: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock lake", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="ls | show | sql")
    listing = commands.add_parser("ls", help="topics, days, files and bytes")
    listing.add_argument("lake", type=Path)
    listing.set_defaults(command=lambda options: listed(options.lake))
    show = commands.add_parser("show", help="the newest rows")
    show.add_argument("lake", type=Path)
    show.add_argument("--rows", type=int, default=20)
    show.set_defaults(command=lambda options: shown(options.lake, options.rows))
    sql = commands.add_parser("sql", help="a query; the table is called `lake`")
    sql.add_argument("lake", type=Path)
    sql.add_argument("query")
    sql.set_defaults(command=lambda options: query(options.lake, options.query))
    return parser


SHOW = """\
SELECT sequence, time, topic, event_type, aggregate_id, payload
FROM (SELECT * FROM lake ORDER BY time DESC, sequence DESC LIMIT {rows})
ORDER BY time, sequence"""

SHOW_SNAPSHOT = """\
SELECT * FROM (SELECT * FROM lake ORDER BY sequence DESC LIMIT {rows}) ORDER BY sequence"""

ROWS = """\
SELECT * FROM read_parquet({files}, hive_partitioning = true, union_by_name = true,
    hive_types_autocast = false)"""

SNAPSHOT_ROWS = """\
SELECT * FROM read_parquet({files})
QUALIFY row_number() OVER (PARTITION BY aggregate_id ORDER BY events DESC) = 1"""


def listed(lake: Path) -> str:
    """Return one line for each topic and day, or for each part of a snapshot."""
    if parts := parts_of(_check(lake)):
        return "".join(_line(part.name, f"{part.rows:,} rows", lake / part.name) for part in parts)
    lines = []
    for day in sorted(lake.glob("topic=*/date=*")):
        topic, date = (part.split("=", 1)[1] for part in day.parts[-2:])
        lines.append(_line(topic, date, day))
    return "".join(lines)


def shown(lake: Path, rows: int) -> str:
    """Return the newest rows."""
    return query(lake, (SHOW_SNAPSHOT if parts_of(lake) else SHOW).format(rows=rows))


def query(lake: Path, text: str) -> str:
    """Return the answer of an SQL query as lines of tab-separated values, names first."""
    try:
        import duckdb
    except ImportError:
        raise ConfigError("SQL needs DuckDB; hint: pip install duckdb") from None
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE VIEW lake AS {_rows(_check(lake))}")
        try:
            answer = connection.execute(text)
        except duckdb.Error as error:
            raise ConfigError(str(error)) from None
        names = [column[0] for column in answer.description or ()]
        rows = answer.fetchall()
    return "".join("\t".join(map(_cell, row)) + "\n" for row in [names, *rows])


def _rows(lake: Path) -> str:
    """Return the query that gives the rows of a lake, or of the newest snapshot."""
    parts = parts_of(lake)
    folders = [part.name for part in parts] or ["topic=*/date=*/batch=*"]
    files = [str(lake / folder / "*.parquet").replace("'", "''") for folder in folders]
    quoted = ", ".join(f"'{file}'" for file in files)
    return (SNAPSHOT_ROWS if parts else ROWS).format(files=f"[{quoted}]")


def _line(first: str, second: str, folder: Path) -> str:
    files = list(folder.glob("**/*.parquet"))
    size = sum(file.stat().st_size for file in files)
    return f"{first}\t{second}\t{len(files)} files\t{size:,} bytes\n"


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return str(value).replace("\t", " ").replace("\n", " ")


def _check(lake: Path) -> Path:
    if not lake.is_dir():
        raise ConfigError(f"there is no lake at `{lake}`")
    return lake
