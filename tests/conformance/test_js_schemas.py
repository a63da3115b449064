"""
JSON answers and events, held to the schemas that come with nats-io/jsm.go.

The schemas are read when the tests run, from the Go module, and skipped where that
cannot be had. They lag behind nats-server now and then, so what counts is that
nothing is wrong with our documents that is right with its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from tests.conformance import jsdeliveries, jsrequests
from tests.conformance.jsrequests import Exchange
from tests.conformance.test_nats_go import UNREACHABLE
from tests.conftest import Servers
from tests.servers import NATS_SERVER, PENSTOCK, Program, RawClient, ServerProcess

MODULE = "github.com/nats-io/jsm.go@v0.4.1"
DOWNLOAD_TIMEOUT_S = 120.0
PREFIX = "io.nats."
STREAM = "SNAP"
EVENTFUL = ("acks", "advisories", "pause", "priority_groups")
"""The conversations with consumers that are full of events."""


class Schemas:
    """The schemas, by the type that a document says it has."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._validators: dict[str, Validator] = {}

    def problems(self, document: dict[str, Any]) -> set[str] | None:
        """Return what is wrong with a document; None if there is no schema for it."""
        kind = document.get("type", "")
        path = self._directory / (kind.removeprefix(PREFIX).replace(".", "/") + ".json")
        if not kind.startswith(PREFIX) or not path.is_file():
            return None
        if kind not in self._validators:
            schema = json.loads(path.read_text())
            self._validators[kind] = validator_for(schema)(schema)
        errors = self._validators[kind].iter_errors(document)
        return {f"{kind}: {leaf}" for each in errors for leaf in _leaves(each)}


def _leaves(error: ValidationError) -> Iterator[str]:
    """Yield what is wrong in the end, where one of several had to be right."""
    if error.context:
        for each in error.context:
            yield from _leaves(each)
    else:
        is_about_names = error.validator in ("required", "additionalProperties")
        yield f"{error.json_path}: {error.message if is_about_names else error.validator}"


@pytest.fixture(scope="session")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Schemas:
    if shutil.which("go") is None:
        pytest.skip("the schemas come as a Go module, and there is no `go` here to get it")
    environment = os.environ | {
        "GOMODCACHE": str(tmp_path_factory.mktemp("modules")),
        "GOFLAGS": "-modcacherw",
        "GOSUMDB": "off",
    }
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", MODULE],
            env=environment,
            cwd=tmp_path_factory.mktemp("nowhere"),
            capture_output=True,
            timeout=DOWNLOAD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{MODULE} did not come within {DOWNLOAD_TIMEOUT_S:g} s")
    said = done.stdout.decode() + done.stderr.decode()
    if any(word in said for word in (*UNREACHABLE, "requires go >=")):
        pytest.skip(f"{MODULE} cannot be had here: {said[-300:]}")
    assert done.returncode == 0, said
    return Schemas(Path(json.loads(done.stdout)["Dir"]) / "schemas")


def documents_of(messages: list[bytes]) -> Iterator[dict[str, Any]]:
    for data in messages:
        try:
            document = json.loads(data)
        except ValueError:
            continue
        if isinstance(document, dict) and "type" in document:
            yield document


def answers_of(program: Program, servers: Servers) -> list[bytes]:
    """Return the answers to everything the transcripts ask."""
    found: list[bytes] = []
    with RawClient(servers(program, jsrequests.CONFIG).port) as client:
        client.connect()
        client.send(b"SUB _INBOX.t.* 1\r\n")
        client.settle()
        for transcript in jsrequests.load_all():
            jsrequests.delete_streams(client)
            found += [jsrequests.ask_once(client, each) for each in transcript.exchanges]
        jsrequests.delete_streams(client)
        found.append(jsrequests.ask_once(client, Exchange("$JS.API.INFO", "")))
    return found


def events_of(program: Program) -> list[bytes]:
    """Return the events that the transcripts of consumers cause, and those of a snapshot."""
    found: list[bytes] = []
    for conversation in jsdeliveries.load_all():
        if conversation.path.stem in EVENTFUL:
            with (
                ServerProcess(program, conversation.config) as server,
                RawClient(server.port) as listener,
            ):
                listener.connect().send(b"SUB $JS.EVENT.> 1\r\n")
                listener.settle()
                jsdeliveries.play(conversation, server.port)
                found += _read_until(listener, b"", b"PONG")
    with ServerProcess(program, jsdeliveries.CONFIG) as server, RawClient(server.port) as client:
        client.connect().send(b"SUB $JS.EVENT.> 1\r\nSUB _INBOX.> 2\r\nSUB chunks 3\r\n")
        found += _snapshot_events(client)
    return found


def _snapshot_events(client: RawClient) -> list[bytes]:
    """Return the events of a snapshot, and of a restore that fails."""
    subject = f"$JS.API.STREAM.{{}}.{STREAM}"
    create = Exchange(subject.format("CREATE"), json.dumps({"name": STREAM}))
    snapshot = Exchange(subject.format("SNAPSHOT"), json.dumps({"deliver_subject": "chunks"}))
    config = {"config": {"name": "OTHER"}, "state": {}}
    restore = Exchange("$JS.API.STREAM.RESTORE.OTHER", json.dumps(config))
    found = _read_until(client, create.encode("_INBOX.a"), b"STREAM.CREATED")
    found += _read_until(client, snapshot.encode("_INBOX.b"), b"SNAPSHOT_COMPLETE")
    found += _read_until(client, restore.encode("_INBOX.c"), b"_INBOX.c")
    deliver_subject = json.loads(found[-1])["deliver_subject"]
    chunks = Exchange(deliver_subject, "x" * 100).encode("_INBOX.d")
    chunks += Exchange(deliver_subject, "").encode("_INBOX.d")
    return found + _read_until(client, chunks, b"RESTORE_COMPLETE")


def _read_until(client: RawClient, request: bytes, mark: bytes) -> list[bytes]:
    """Send something, and return the payloads that come up to a line with a mark in it."""
    client.send(request or b"PING\r\n")
    found = []
    while True:
        line = client.line()
        fields = line.split()
        if fields[0] in (b"MSG", b"HMSG"):
            data = client.read(int(fields[-1]) + 2)[:-2]
            found.append(data[int(fields[-2]) if fields[0] == b"HMSG" else 0 :])
        if mark in line:
            return found


def check(schemas: Schemas, ours: list[bytes], theirs: list[bytes]) -> set[str]:
    """Find nothing wrong with ours that is right with theirs; return the types that were seen."""
    known: set[str] = set()
    for document in documents_of(theirs):
        known |= schemas.problems(document) or set()
    seen = set()
    for document in documents_of(ours):
        problems = schemas.problems(document)
        if problems is not None:
            seen.add(document["type"])
            assert problems <= known, (problems - known, document)
    return seen


def test_answers_are_what_the_schemas_say(schemas: Schemas, servers: Servers) -> None:
    seen = check(schemas, answers_of(PENSTOCK, servers), answers_of(NATS_SERVER, servers))

    assert len(seen) > 15, seen


def test_events_are_what_the_schemas_say(schemas: Schemas) -> None:
    seen = check(schemas, events_of(PENSTOCK), events_of(NATS_SERVER))

    assert len(seen) >= 14, seen
