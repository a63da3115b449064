"""The example and the guide: what they say is so."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.servers import ServerProcess

from penstock.spark.options import ConnectionOptions, SinkOptions, SourceOptions, option_name
from penstock.spark.pipelines.config import load
from penstock.spark.pipelines.table import PIPELINES

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "spark.md").read_text()


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock: the source and the sink are held to both servers elsewhere."""
    return servers["penstock"]


def test_the_example_file_is_valid() -> None:
    assert "archive" == load(ROOT / "examples" / "archive.yml").pipeline


@pytest.mark.parametrize("options", [ConnectionOptions, SourceOptions, SinkOptions])
def test_the_guide_names_every_option(options: Any) -> None:
    for item in fields(options):
        assert f"| `{option_name(item.name)}` |" in GUIDE
        assert item.metadata["doc"] in GUIDE


@pytest.mark.parametrize("name", PIPELINES)
def test_the_guide_names_every_pipeline(name: str) -> None:
    assert f"| `{name}` |" in GUIDE
