"""`penstock lake`: look into a lake without Spark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, PenstockError


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
    show.set_defaults(command=lambda options: query(options.lake, SHOW.format(rows=options.rows)))
    sql = commands.add_parser("sql", help="a query; the table is called `lake`")
    sql.add_argument("lake", type=Path)
    sql.add_argument("query")
    sql.set_defaults(command=lambda options: query(options.lake, options.query))
    return parser


SHOW = """\
SELECT sequence, time, topic, event_type, aggregate_id, payload
FROM (SELECT * FROM lake ORDER BY time DESC, sequence DESC LIMIT {rows})
ORDER BY time, sequence"""


def listed(lake: Path) -> str:
    """Return one line for each topic and day."""
    days = sorted(_check(lake).glob("topic=*/date=*"))
    lines = []
    for day in days:
        files = list(day.glob("**/*.parquet"))
        size = sum(file.stat().st_size for file in files)
        topic, date = (part.split("=", 1)[1] for part in day.parts[-2:])
        lines.append(f"{topic}\t{date}\t{len(files)} files\t{size:,} bytes\n")
    return "".join(lines)


def query(lake: Path, text: str) -> str:
    """Return the answer of an SQL query as lines of tab-separated values, names first."""
    try:
        import duckdb
    except ImportError:
        raise ConfigError("SQL needs DuckDB; hint: pip install duckdb") from None
    files = str(_check(lake) / "topic=*" / "date=*" / "batch=*" / "*.parquet").replace("'", "''")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            f"CREATE VIEW lake AS SELECT * FROM read_parquet('{files}', "
            "hive_partitioning = true, union_by_name = true, hive_types_autocast = false)"
        )
        try:
            answer = connection.execute(text)
        except duckdb.Error as error:
            raise ConfigError(str(error)) from None
        names = [column[0] for column in answer.description or ()]
        rows = answer.fetchall()
    return "".join("\t".join(map(_cell, row)) + "\n" for row in [names, *rows])


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return str(value).replace("\t", " ").replace("\n", " ")


def _check(lake: Path) -> Path:
    if not lake.is_dir():
        raise ConfigError(f"there is no lake at `{lake}`")
    return lake
