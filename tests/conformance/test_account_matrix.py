"""
Who may do what, walked completely: each user x each class of subjects x every call of JetStream.

Both servers get the same configuration file and the same questions, from every user.
Their answers are brought to what matters (who heard, which error, whose data) and
must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.conformance.matrix import USERS, Party, open_parties

from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi

SUBJECTS = (
    *("ev.1", "ev.2", "ask", "plain", "nothing", "s.1", "_INBOX.x", "_R_.x"),
    *("$JS.API.INFO", "$JS.ACK.x", "$JS.FC.x", "$JS.EVENT.ADVISORY.x", "$KV.b.k", "$O.b.M.x"),
    *("$SYS.x", "$SYS.REQ.USER.INFO", "$SYS.ACCOUNT.A.CONNECT", "$SRV.PING"),
)
SERVED = ("$JS.API.INFO", "$SYS.REQ.USER.INFO")
"""Requests that nats-server takes through its system account, where they can be overheard."""

STREAM = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
ONE = {"stream_name": "S", "config": {"durable_name": "one", "name": "one"}}
TWO = {"stream_name": "S", "config": {"durable_name": "two", "name": "two"}}
CALLS: tuple[tuple[str, Any], ...] = (
    ("INFO", None),
    ("STREAM.NAMES", None),
    ("STREAM.CREATE.S", STREAM),
    ("STREAM.CREATE.M", {"name": "M", "subjects": ["m.>"], "storage": "memory"}),
    ("STREAM.CREATE.BIG", {"name": "BIG", "subjects": ["big"], "max_bytes": 2_000_000}),
    ("STREAM.INFO.S", None),
    ("STREAM.LIST", None),
    ("STREAM.UPDATE.S", STREAM | {"subjects": ["s.>", "t.>"]}),
    ("STREAM.MSG.GET.S", {"seq": 1}),
    ("DIRECT.GET.S", {"seq": 1}),
    ("DIRECT.GET.S.s.1", None),
    ("STREAM.MSG.DELETE.S", {"seq": 1}),
    ("STREAM.PURGE.S", None),
    ("STREAM.SNAPSHOT.S", None),
    ("STREAM.RESTORE.S", None),
    ("STREAM.LEADER.STEPDOWN.S", None),
    ("STREAM.PEER.REMOVE.S", {"peer": "x"}),
    ("STREAM.PEER.EVACUATE.S", {"peer": "x"}),
    ("STREAM.CANCEL_MOVE.S", None),
    ("CONSUMER.CREATE.S.one", ONE),
    ("CONSUMER.CREATE.S.two", TWO),
    ("CONSUMER.CREATE.S", {"stream_name": "S", "config": {"durable_name": "x"}}),
    ("CONSUMER.DURABLE.CREATE.S.two", TWO),
    ("CONSUMER.CREATE.S.three.s.1", {"stream_name": "S", "config": {"filter_subject": "s.1"}}),
    ("CONSUMER.INFO.S.one", None),
    ("CONSUMER.NAMES.S", None),
    ("CONSUMER.LIST.S", None),
    ("CONSUMER.MSG.NEXT.S.one", {"batch": 1, "no_wait": True}),
    ("CONSUMER.PAUSE.S.one", {"pause_until": "2001-01-01T00:00:00Z"}),
    ("CONSUMER.UNPIN.S.one", {"group": "x"}),
    ("CONSUMER.RESET.S.one", None),
    ("CONSUMER.LEADER.STEPDOWN.S.one", None),
    ("CONSUMER.DELETE.S.one", None),
    ("STREAM.DELETE.S", None),
    ("STREAM.DELETE.M", None),
    ("STREAM.INFO.S", None),
)
UNANSWERED = (
    *("META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE", "SERVER.EVACUATE"),
    *("ACCOUNT.STREAM.MOVE.A.S", "ACCOUNT.STREAM.CANCEL_MOVE.A.S", "CONSUMER.RESET.NOPE.one"),
    *("NOPE", "STREAM.NOPE.S", "CONSUMER.NOPE.S.one"),
)
"""What only the system account may ask, mostly that of a cluster, and what nobody understands."""
STREAMLESS = ("b", "d", "anybody")
"""Users of accounts without JetStream."""
PREFIXES = ("$JS.API", "JS.A.API")


@pytest.fixture(scope="module")
def parties() -> Iterator[tuple[Party, Party]]:
    with ExitStack() as stack:
        yield open_parties(stack)


def test_every_call_of_the_api_is_walked() -> None:
    tables = (streamapi, consumerapi, snapshotapi, clusterapi)
    known = {".".join(name) for table in tables for name in table.CALLS}
    asked = [call for call, _ in CALLS]

    missing = {
        name for name in known if not any(f"{call}.".startswith(f"{name}.") for call in asked)
    }
    assert missing == set()


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("publisher", USERS)
def test_the_same_users_hear_a_message(
    parties: tuple[Party, Party], publisher: str, subject: str
) -> None:
    expected, actual = (party.heard(publisher, subject) for party in parties)
    if subject in SERVED:
        expected["s"] = actual["s"] = []

    assert expected == actual


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("user", USERS)
def test_the_same_calls_of_jetstream_are_permitted(
    parties: tuple[Party, Party], user: str, prefix: str
) -> None:
    for call, request in CALLS:
        if call.startswith("CONSUMER.RESET") and prefix == "$JS.API" and user in STREAMLESS:
            continue  # The consumer itself answers, and there is none.
        body = json.dumps(request).encode() if request is not None else b""
        expected, actual = (
            _outcome(party.ask(user, f"{prefix}.{call}", body)) for party in parties
        )

        assert (call, expected) == (call, actual)


@pytest.mark.parametrize("call", UNANSWERED)
@pytest.mark.parametrize("user", USERS)
def test_the_same_calls_are_met_with_silence(
    parties: tuple[Party, Party], user: str, call: str
) -> None:
    expected, actual = (
        party.is_silent(user, f"$JS.API.{call}", "$JS.API.INFO") for party in parties
    )

    assert expected == actual


@pytest.mark.parametrize("user", [user for user in USERS if user != "s"])
def test_only_the_system_account_deletes_the_streams_of_another(
    parties: tuple[Party, Party], user: str
) -> None:
    call = "$JS.API.ACCOUNT.PURGE.A"
    expected, actual = (party.is_silent(user, call, "$JS.API.INFO") for party in parties)

    assert expected == actual


def test_the_system_account_deletes_the_streams_of_another(parties: tuple[Party, Party]) -> None:
    for party in parties:
        party.ask("a", "$JS.API.STREAM.CREATE.S", json.dumps(STREAM).encode())
        party.ask("a", "$JS.API.STREAM.CREATE.T", b'{"name":"T","subjects":["t.>"]}')
    purged = [party.ask("s", "$JS.API.ACCOUNT.PURGE.A") for party in parties]
    left = [party.ask("a", "$JS.API.STREAM.NAMES") for party in parties]

    assert purged[0] == purged[1]
    assert [each["streams"] for each in left] == [None, None]


def _outcome(answer: Any) -> Any:
    """Return what an answer of the API comes to."""
    if isinstance(answer, str):
        return answer
    if "error" in answer:
        return answer["error"]["err_code"], answer["error"]["description"]
    known = ("type", "streams", "consumers", "limits", "success", "total")
    found = {name: answer[name] for name in known if name in answer}
    if answer["type"].endswith("_list_response"):
        found.pop("streams", None)
        found.pop("consumers", None)
    return found
