"""What `penstock lake` says of a directory that is no lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.lake import query
from penstock.errors import ClientError, ConfigError

pytest.importorskip("duckdb")


def test_a_table_is_no_lake(tmp_path: Path) -> None:
    """As the report of an audit, or the figures of metrics."""
    with pytest.raises(ClientError, match=r"there are no messages in `.*` yet"):
        query(tmp_path, "SELECT * FROM lake")
    (tmp_path / "part-0.parquet").touch()
    with pytest.raises(
        ConfigError, match=r"is a table of Parquet files, and no lake; hint: `spark"
    ):
        query(tmp_path, "SELECT * FROM lake")
