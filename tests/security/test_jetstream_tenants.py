"""One account cannot stop JetStream for another, whatever it sends."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from tests.security.tenants import Tenant, config, works
from tests.servers import HOST, PROGRAMS, Program, ServerProcess, wait_until

WRONG_LAST_SEQUENCE = 10071
DIGITS = "9" * 5000
DEEP = "[" * 100_000
NUMBERS = (
    "Nats-Required-Api-Level",
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Last-Subject-Sequence",
    "Nats-TTL",
    "Nats-Incr",
    "Nats-Batch-Sequence",
    "Nats-Last-Consumer",
    "Nats-Last-Stream",
)
"""Headers in which the server looks for a number."""


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    program: Program = request.param
    with ServerProcess(program, config()) as started:
        with Tenant(started, "a") as victim:
            victim.create("A")
        yield started


@pytest.fixture
def attacker(server: ServerProcess) -> Iterator[Tenant]:
    with Tenant(server, "b") as tenant:
        tenant.create("B")
        yield tenant
        tenant.call("STREAM.DELETE.B")


@pytest.fixture(autouse=True)
def _nobody_else_notices(server: ServerProcess) -> Iterator[None]:
    with Tenant(server, "a") as victim:
        yield
        works(victim, "A")
    # nats-server is unwell for a moment whenever a stream goes.
    wait_until(lambda: _is_well(server))


def _is_well(server: ServerProcess) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/healthz") as answer:
            return bool(json.load(answer) == {"status": "ok"})
    except urllib.error.HTTPError:
        return False


def test_a_consumer_whose_name_no_directory_can_have_is_refused(attacker: Tenant) -> None:
    for name in ("a\0b", "\0", "é" * 128):
        options = {"name": name, "durable_name": name}
        created = attacker.call(
            f"CONSUMER.CREATE.B.{name}", stream_name="B", config=options, action="create"
        )

        assert "error" in created
    assert attacker.call("CONSUMER.NAMES.B")["total"] == 0
    works(attacker, "B")


def test_a_stream_whose_name_no_directory_can_have_is_refused(attacker: Tenant) -> None:
    for name in ("a\0b", "\0", "é" * 128):
        created = attacker.call(f"STREAM.CREATE.{name}", name=name, subjects=["refused.>"])

        assert "error" in created
    assert attacker.call("STREAM.NAMES", subject="refused.>")["total"] == 0


@pytest.mark.parametrize("name", NUMBERS)
def test_a_header_of_5000_digits_is_an_answer_and_no_more(attacker: Tenant, name: str) -> None:
    header = f"NATS/1.0\r\n{name}: {DIGITS}\r\n\r\n".encode()

    stored = attacker.ask("B.1", b"", header=header)
    asked = attacker.ask("$JS.API.STREAM.INFO.B", b"", header=header)

    assert "error" in stored or stored["seq"] > 0
    assert ("error" in asked) == (name == "Nats-Required-Api-Level")
    works(attacker, "B")


def test_a_republish_into_the_api_costs_nobody_their_acks(
    server: ServerProcess, attacker: Tenant
) -> None:
    loud = {"src": "R.1", "dest": "$JS.API.STREAM.INFO.R"}
    attacker.create("R", republish=loud)
    header = f"NATS/1.0\r\nNats-Required-Api-Level: {DIGITS}\r\n\r\n".encode()
    with Tenant(server, "a") as victim:
        for _ in range(20):
            attacker.request("R.1", b"", header=header)
            attacker.settle()

            assert "seq" in victim.ask("A.x", b"payload")
    attacker.call("STREAM.DELETE.R")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(f'{{"config":{DEEP}', id="open brackets"),
        pytest.param('{"config":' + DEEP + "]" * 100_000 + "}", id="closed brackets"),
        pytest.param(f'{{"max_msgs":{DIGITS},"seq":{DIGITS}}}', id="long number"),
        pytest.param('{"name":"\\ud800","filter":"\\udc80"}', id="half a character"),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        "STREAM.CREATE.X",
        "STREAM.UPDATE.B",
        "STREAM.PURGE.B",
        "STREAM.RESTORE.X",
        "STREAM.SNAPSHOT.B",
        "STREAM.MSG.GET.B",
        "STREAM.MSG.DELETE.B",
        "CONSUMER.CREATE.B",
        "CONSUMER.CREATE.B.c",
        "CONSUMER.DURABLE.CREATE.B.c",
    ],
)
def test_json_that_makes_no_sense_is_a_bad_request(attacker: Tenant, call: str, body: str) -> None:
    answer = attacker.ask(f"$JS.API.{call}", body)

    assert answer["error"]["code"] in (400, 404)
    works(attacker, "B")


def test_half_a_character_is_replaced_as_go_does(attacker: Tenant) -> None:
    request = '{"name":"H","subjects":["H.\\ud800"],"description":"\\udc80","storage":"memory"}'

    config = attacker.ask("$JS.API.STREAM.CREATE.H", request)["config"]

    assert (config["subjects"], config["description"]) == (["H.�"], "�")
    attacker.call("STREAM.DELETE.H")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_expectation_that_is_no_number_is_not_met(program: Program) -> None:
    values = (b"-1", b"abc", b"1e3", b"+1", b"1_0", b"9s", b"9" * 5000)
    names = (b"Nats-Expected-Last-Sequence", b"Nats-Expected-Last-Subject-Sequence")
    with ServerProcess(program, config()) as server, Tenant(server, "a") as tenant:
        tenant.create("A")
        for name in names:
            for value in values:
                header = b"NATS/1.0\r\n%b: %b\r\n\r\n" % (name, value)
                answer = tenant.ask("A.x", b"1", header=header)
                assert answer["error"]["err_code"] == WRONG_LAST_SEQUENCE, (name, value)
        assert tenant.call("STREAM.INFO.A")["state"]["messages"] == 0


SHARED = """
jetstream { store_dir: "./store" }
accounts {
  A { jetstream: enabled, users: [{user: a, password: a}], exports: [ { stream: "A.>" } ] }
  B { jetstream: enabled, users: [{user: b, password: b}]
      imports: [ { stream: { account: A, subject: "A.>" } } ] }
}
"""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("first", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_stream_that_is_full_of_sequences_stops_nobody_it_listens_to(
    program: Program, first: int
) -> None:
    with (
        ServerProcess(program, SHARED) as server,
        Tenant(server, "a") as victim,
        Tenant(server, "b") as other,
    ):
        victim.create("A")
        other.call("STREAM.CREATE.B", name="B", subjects=["A.>"], storage="file", first_seq=first)

        for _ in range(3):
            works(victim, "A")


def test_a_stream_without_sequences_says_so(attacker: Tenant) -> None:
    purged = attacker.call("STREAM.PURGE.B", seq=2**62)

    answers = [attacker.ask(f"B.{each}") for each in range(3)]

    assert purged["success"] is True
    stored = [each for each in answers if "error" not in each]
    assert attacker.call("STREAM.INFO.B")["state"]["messages"] == len(stored)
