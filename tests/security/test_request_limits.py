"""What one request may ask for is what the guide says: so much, and not one more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World

from penstock.jetstream.api import consumerapi, directget, streamapi

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "securing.md"
UNITS = {"KB": 1024, "characters": 1, "bytes": 1, "": 1}


def table(title: str) -> dict[str, int]:
    """Return the rows of a table of the guide, as numbers."""
    lines = GUIDE.read_text().split(f"| {title} | at most |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in lines.splitlines()]
    return {name: number(text) for name, text in rows}


def number(text: str) -> int:
    digits, _, unit = text.partition(" ")
    return int(digits.replace(",", "")) * UNITS[unit]


OWN_METADATA_BYTES = len("_nats.req.level" + "0")
"""What the server adds to a stream before it counts, as nats-server does."""
ASKED = table("of one request to JetStream")


def stream(**fields: Any) -> tuple[str, bytes]:
    config = {"name": "S", "storage": "memory"} | fields
    return "STREAM.CREATE.S", json.dumps(config, separators=(",", ":")).encode()


def consumer(**fields: Any) -> tuple[str, bytes]:
    config = {"name": "c", "ack_policy": "explicit", "mem_storage": True} | fields
    return "CONSUMER.CREATE.K.c", json.dumps({"stream_name": "K", "config": config}).encode()


def body(n: int) -> tuple[str, bytes]:
    call, text = stream(subjects=["s"])
    return call, text.ljust(n)


def tokens(begin: str, n: int) -> list[str]:
    """Return subjects with `n` tokens in all, a hundred each but for the last one."""
    lengths = [100] * (n // 100 - 1) + [100 + n % 100]
    return [
        f"{begin}{i}" + ".a" * (length - begin.count(".") - 1) for i, length in enumerate(lengths)
    ]


def transforms(n: int) -> list[dict[str, Any]]:
    each = [{"src": f"a.{i}", "dest": f"b.{i}"} for i in range(n)]
    return [
        {"name": "o", "subject_transforms": each[:300]},
        {"name": "p", "subject_transforms": each[300:]},
    ]


REQUESTS: dict[str, list[Callable[[int], tuple[str, bytes]]]] = {
    "its body": [body],
    "subjects of a stream, filters of a consumer": [
        lambda n: stream(subjects=[f"s.{i}" for i in range(n)]),
        lambda n: consumer(filter_subjects=[f"k.{i}" for i in range(n)]),
    ],
    "tokens of these subjects or filters in all": [
        lambda n: stream(subjects=tokens("s", n)),
        lambda n: consumer(filter_subjects=tokens("k.x", n)),
    ],
    "one subject, filter or template": [
        lambda n: stream(subjects=["s" * n]),
        lambda n: consumer(filter_subject="k." + "s" * (n - 2)),
    ],
    "sources of a stream": [lambda n: stream(sources=[{"name": f"o{i}"} for i in range(n)])],
    "transforms of a stream's sources or mirror in all": [lambda n: stream(sources=transforms(n))],
    "the destination of a transform": [
        lambda n: stream(subjects=["s.*"], subject_transform={"src": "s.*", "dest": "d" * n})
    ],
    "backoff times of a consumer": [lambda n: consumer(backoff=[10**9] * n, max_deliver=5000)],
    "priority groups of a consumer": [
        lambda n: consumer(priority_policy="overflow", priority_groups=[f"g{i}" for i in range(n)])
    ],
    "a description": [
        lambda n: stream(subjects=["s"], description="d" * n),
        lambda n: consumer(description="d" * n),
    ],
    "metadata": [
        lambda n: stream(subjects=["s"], metadata={"k": "v" * (n - 1 - OWN_METADATA_BYTES)}),
        lambda n: consumer(metadata={"k": "v" * (n - 1)}),
    ],
    "patterns of `multi_last` in a direct get": [
        lambda n: (
            "DIRECT.GET.K",
            json.dumps({"multi_last": [f"k.{i}" for i in range(n)]}).encode(),
        )
    ],
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("K", subjects=["k.>"], allow_direct=True)
    world.send(b"PUB k.1 0\r\n\r\n")
    world.settle()
    return world


def refusal(world: World, call: str, request: bytes) -> str:
    """Ask for something; return why it is refused, if it is."""
    world.publish(f"$JS.API.{call}", request, reply="_INBOX.l")
    world.settle()
    answer = world.received()[0]
    if isinstance(answer, dict):
        return str(answer.get("error", {}).get("description", ""))
    return str(answer) if "413" in str(answer) else ""


def test_every_limit_of_the_guide_is_tried() -> None:
    assert ASKED.keys() == REQUESTS.keys()


@pytest.mark.parametrize(
    ("name", "which"), [(name, i) for name, makes in REQUESTS.items() for i in range(len(makes))]
)
def test_so_much_is_granted_and_no_more(world: World, name: str, which: int) -> None:
    make, limit = REQUESTS[name][which], ASKED[name]

    refused = refusal(world, *make(limit + 1))
    granted = refusal(world, *make(limit))

    assert refused
    assert not granted


def test_an_answer_is_as_long_as_the_guide_says() -> None:
    assert table("of one answer") == {
        "messages of a direct get": directget.BATCH_MAX,
        "subjects in `STREAM.INFO`": streamapi.SUBJECT_DETAILS_MAX,
        "deleted messages in `STREAM.INFO`": streamapi.DELETED_DETAILS_MAX,
        "names in `STREAM.NAMES` and `CONSUMER.NAMES`": streamapi.NAMES_MAX,
        "entries in `STREAM.LIST` and `CONSUMER.LIST`": streamapi.LIST_MAX,
    }
    assert (streamapi.NAMES_MAX, streamapi.LIST_MAX) == (
        consumerapi.NAMES_MAX,
        consumerapi.LIST_MAX,
    )
