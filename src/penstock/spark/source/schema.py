"""The columns of the source, as Spark and as Arrow know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.hot.deliveries import DATA, HEADERS, SUBJECTS
from penstock.spark.envelopes.envelope import DECOMPRESSED, FIELDS

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = {
    "subject": "string",
    "data": "binary",
    "headers": "array<struct<key:string,value:string>>",
    "stream": "string",
    "sequence": "bigint",
    "time": "timestamp",
}
COLUMNS = tuple(TYPES)
FORMATS = ("raw", "envelope")
WANTED = {"subject": SUBJECTS, "data": DATA, "headers": HEADERS}
"""Columns that cost something to gather."""


def types_of(format: str) -> dict[str, str]:
    """Return the columns that a format can have; that of a payload depends on its schema."""
    if format == "raw":
        return TYPES | {DECOMPRESSED: "binary"}
    messages = {name: kind for name, kind in TYPES.items() if name != "data"}
    return messages | FIELDS | {"payload": ""}


def columns_of(format: str) -> tuple[str, ...]:
    """Return the names of the columns that a format has if none are named."""
    return tuple(name for name in types_of(format) if name != DECOMPRESSED)


def ddl(columns: Sequence[str], types: Mapping[str, str]) -> str:
    """Return the schema as Spark's SQL spells it."""
    return ", ".join(f"{column} {types[column]}" for column in columns)


def check(given: Sequence[tuple[str, str]], types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that a schema, as names and simple types, asks for."""
    for name, simple_type in given:
        if name not in types:
            valid = ", ".join(f"`{column}`" for column in types)
            raise ConfigError(f"the penstock source has no column `{name}`; valid: {valid}")
        if types[name] and types[name] != simple_type:
            raise ConfigError(f"the column `{name}` is {types[name]}, not {simple_type}")
    return tuple(name for name, _ in given)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that Spark expects of these columns, to the letter."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.string())])
    types = {
        "subject": pa.string(),
        "data": pa.binary(),
        "headers": pa.list_(pa.field("element", header)),
        "stream": pa.string(),
        "sequence": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(column, types[column]) for column in columns])


def wanted(columns: Sequence[str]) -> int:
    """Return what `collect_deliveries` has to gather for these columns."""
    return sum(WANTED.get(column, 0) for column in columns)
