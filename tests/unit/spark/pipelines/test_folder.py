"""Files that a pipeline goes on from: what is damaged is named, and nothing is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreError
from penstock.spark.pipelines.batches import IDENTITY, ReplayLog
from penstock.spark.pipelines.folder import LocalFolder
from penstock.spark.pipelines.lake import recover
from penstock.spark.pipelines.progress import check_readable, finished_offset, status
from penstock.spark.pipelines.snapshot import parts_of


def claim(folder: LocalFolder) -> None:
    """Take the checkpoint of a replay of nothing in particular."""
    ReplayLog(folder).claim({})


READERS: dict[str, tuple[Callable[[LocalFolder], Any], ...]] = {
    "offsets/7": (status, check_readable),
    "commits/7": (check_readable,),
    "metadata": (check_readable,),
    "manifest/7.json": (parts_of,),
    "_compaction/7.json": (recover,),
    IDENTITY: (claim,),
}


@pytest.mark.parametrize("text", [b"", b"v1", b'{"id": "a"', b"17", b"null", b"[[]]", b"\xff"])
@pytest.mark.parametrize("file", READERS)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: bytes) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(text)

    for read in READERS[file]:
        with pytest.raises(StoreError, match=rf"^`{tmp_path}/{file}` is damaged, or missing; hint"):
            read(LocalFolder(tmp_path))


@pytest.mark.parametrize("entry", ["{}", '{"messages": 3}', "[]", '{"messages": "x"}'])
def test_a_replay_does_not_begin_again_where_it_cannot_read_what_is_done(
    tmp_path: Path, entry: str
) -> None:
    claim(LocalFolder(tmp_path))
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    (tmp_path / "commits" / "3").write_text(entry)

    with pytest.raises(StoreError, match="/commits/3` is damaged"):
        claim(LocalFolder(tmp_path))
    (tmp_path / "commits" / "3").rename(tmp_path / "offsets" / "3")
    with pytest.raises(StoreError, match="/commits/2` is damaged, or missing"):
        claim(LocalFolder(tmp_path))


def test_a_log_of_something_else_is_named(tmp_path: Path) -> None:
    """Spark's begin with their version."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('{"streams": {}}')

    with pytest.raises(StoreError, match="/offsets/3` is damaged"):
        check_readable(LocalFolder(tmp_path))


def test_a_finished_batch_without_its_offsets_is_named(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").write_text("v1\n{}")

    with pytest.raises(StoreError, match="/offsets/3` is damaged, or missing"):
        finished_offset(LocalFolder(tmp_path))
