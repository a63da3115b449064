"""Mirrors and sources of streams on another server: the real nats-server, and one of ours."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.conformance.remotes import CAUGHT_UP_S, Pair, Server, external, wait_for_error
from tests.contract.credentials import (
    ACCOUNT,
    NO_LIMITS,
    USER,
    Key,
    Realm,
    write_credentials,
)
from tests.servers import HOST, NATS_SERVER, PENSTOCK, PROGRAMS, wait_until

ORIGINS = pytest.mark.parametrize("pair", PROGRAMS, indirect=True, ids=lambda each: each.name)
REAL = pytest.mark.parametrize("pair", [NATS_SERVER], indirect=True, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    """Two servers for each kind of origin, which the tests share."""
    with ExitStack() as stack:
        yield {
            program.name: stack.enter_context(Pair(program, tmp_path_factory.mktemp("pair")))
            for program in PROGRAMS
        }


@pytest.fixture
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> Iterator[Pair]:
    yield pairs[request.param.name]
    pairs[request.param.name].clear()


def mirror(name: str = "O", **options: Any) -> dict[str, Any]:
    return {"mirror": {"name": name, "external": external(), **options}}


def source(name: str = "O", **options: Any) -> dict[str, Any]:
    return {"name": name, "external": external(), **options}


def fill(server: Server) -> None:
    """Make a stream `O` with messages in `o.a` and `o.b`, and some that are gone."""
    server.create("O", subjects=["o.>"])
    server.publish("o.a", 1, 10)
    server.publish("o.b", 11, 20)
    for sequence in (1, 2, 7, 8, 15, 20):
        assert server.call("STREAM.MSG.DELETE.O", seq=sequence)["success"]


@ORIGINS
def test_a_mirror_has_what_its_origin_has_and_goes_on(pair: Pair) -> None:
    fill(pair.origin)
    told = pair.copy.create("M", **mirror())
    assert {"name": "O", "external": external(), "lag": 0, "active": -1} == told["mirror"]
    pair.copy.wait_for("M", last_seq=19)
    pair.origin.publish("o.a", 21, 25)
    pair.wait_until_caught_up("M", "O")

    assert pair.origin.contents("O") == pair.copy.contents("M")
    wait_until(lambda: 0 == pair.copy.origin("M")["lag"])
    assert "error" not in pair.copy.origin("M")


@REAL
@pytest.mark.parametrize(
    "options",
    [
        {"filter_subject": "o.b"},
        {"opt_start_seq": 9},
        {"opt_start_seq": 1, "filter_subject": "o.a"},
        {"subject_transforms": [{"src": "o.*", "dest": "p.$1"}]},
        {"subject_transforms": [{"src": "o.a", "dest": "p.a"}, {"src": "o.b", "dest": ""}]},
    ],
    ids=str,
)
def test_a_mirror_is_the_one_that_nats_server_makes(pair: Pair, options: dict[str, Any]) -> None:
    fill(pair.origin)
    pair.origin.create("L", mirror={"name": "O", **options})
    pair.copy.create("M", **mirror(**options))
    # What ends both the same way: behind the last message there may be sequences of none.
    pair.origin.publish("o.a", 21, 21)
    pair.origin.publish("o.b", 22, 22)
    expected = 22 if options.get("filter_subject") != "o.a" else 21
    pair.origin.wait_for("L", last_seq=expected)
    pair.wait_until_caught_up("M", "L")

    assert pair.origin.contents("L") == pair.copy.contents("M")


@ORIGINS
def test_a_mirror_begins_at_a_time(pair: Pair) -> None:
    fill(pair.origin)
    expected = [each for each in pair.origin.contents("O") if each[1] == "o.b"]
    pair.copy.create("M", **mirror(opt_start_time=expected[0][3]))
    pair.copy.wait_for("M", last_seq=19)

    assert expected == pair.copy.contents("M")


@ORIGINS
def test_a_mirror_of_what_was_purged_begins_where_its_origin_does(pair: Pair) -> None:
    fill(pair.origin)
    pair.origin.call("STREAM.PURGE.O")
    pair.copy.create("M", **mirror())
    pair.wait_until_caught_up("M", "O")
    assert (21, 20) == tuple(pair.copy.state("M")[key] for key in ("first_seq", "last_seq"))

    pair.origin.publish("o.a", 21, 22)
    pair.wait_until_caught_up("M", "O")
    assert [21, 22] == [each[0] for each in pair.copy.messages("M")]


@ORIGINS
def test_sources_of_two_streams_and_an_own_subject_meet_in_one(pair: Pair) -> None:
    fill(pair.origin)
    pair.origin.create("Q", subjects=["q"])
    pair.origin.publish("q", 1, 5)
    sources = [
        source(filter_subject="o.b"),
        source("Q", subject_transforms=[{"src": "q", "dest": "r"}]),
    ]
    pair.copy.create("S", subjects=["own"], sources=sources)
    pair.copy.publish("own", 1, 3)
    pair.copy.wait_for("S", messages=8 + 5 + 3)
    found = pair.copy.contents("S")

    origins = [each[4].get("Nats-Stream-Source", "").split() for each in found]
    names = [each for each in origins if each]
    assert [11, 12, 13, 14, 16, 17, 18, 19] == [int(f[1]) for f in names if f[0].startswith("O:")]
    assert [1, 2, 3, 4, 5] == [int(f[1]) for f in names if f[0].startswith("Q:")]
    assert {"o.b": 8, "r": 5, "own": 3} == {
        subject: len([each for each in found if each[1] == subject])
        for subject in ("o.b", "r", "own")
    }
    assert {"o.b", "q"} == {fields[4] for fields in names}


def copies(server: Server) -> list[int]:
    """Return which messages of its origin a stream with one source has."""
    found = server.contents("S")
    return [int(each[4]["Nats-Stream-Source"].split()[1]) for each in found]


@ORIGINS
def test_copies_go_on_after_either_side_was_killed(pair: Pair) -> None:
    pair.origin.create("O", subjects=["o.>"])
    pair.copy.create("M", **mirror())
    pair.copy.create("S", sources=[source()])
    pair.origin.publish("o.a", 1, 50)
    pair.copy.wait_for("S", messages=50)

    pair.origin.kill()
    wait_for_error(pair.copy, "M", "remote `hub`")
    pair.origin.start()
    pair.origin.publish("o.a", 51, 100)
    pair.copy.wait_for("S", messages=100)

    pair.copy.kill()
    pair.origin.publish("o.a", 101, 150)
    pair.copy.start()
    pair.copy.wait_for("S", messages=150)

    pair.copy.stop()
    pair.origin.publish("o.a", 151, 200)
    pair.origin.call("STREAM.PURGE.O", seq=171)
    pair.copy.start()
    pair.copy.wait_for("S", messages=180)
    pair.copy.wait_for("M", last_seq=200)

    expected = [*range(1, 151), *range(171, 201)]
    assert expected == copies(pair.copy)
    assert [(n, b"%d" % n) for n in expected] == [
        (sequence, payload) for sequence, _, payload in pair.copy.messages("M")
    ]
    assert "error" not in pair.copy.origin("M")


@REAL
@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_a_copy_that_is_killed_in_the_middle_misses_nothing(pair: Pair, kind: str) -> None:
    count, size = 30_000, 500
    pair.origin.create("O", subjects=["o.>"])
    pair.origin.publish("o.a", 1, count, size=size)
    pair.copy.create("S", **(mirror() if kind == "mirror" else {"sources": [source()]}))
    for part in (count // 10, count // 2):
        wait_until(lambda least=part: pair.copy.state("S")["messages"] >= least, CAUGHT_UP_S)
        pair.copy.kill()
        pair.copy.start()
    # One that came twice would make it more.
    pair.copy.wait_for("S", messages=count, first_seq=1, last_seq=count)

    answer = pair.copy.call("STREAM.MSG.GET.S", seq=count - 1)
    assert b"%d" % (count - 1) == base64.b64decode(answer["message"]["data"]).strip()


@ORIGINS
def test_a_source_that_was_made_anew_is_read_from_its_start(pair: Pair) -> None:
    pair.origin.create("O", subjects=["o.>"])
    pair.origin.publish("o.a", 1, 5)
    pair.copy.create("S", sources=[source()])
    pair.copy.wait_for("S", messages=5)

    pair.copy.stop()
    pair.origin.call("STREAM.DELETE.O")
    pair.origin.create("O", subjects=["o.>"])
    pair.origin.publish("o.a", 1, 3)
    pair.copy.start()
    pair.copy.wait_for("S", messages=8)

    assert [1, 2, 3, 4, 5, 1, 2, 3] == copies(pair.copy)


@ORIGINS
def test_an_origin_may_come_later(pair: Pair) -> None:
    pair.copy.create("M", **mirror())
    wait_for_error(pair.copy, "M", "stream not found")
    pair.origin.create("O", subjects=["o.>"])
    pair.origin.publish("o.a", 1, 3)
    pair.copy.wait_for("M", messages=3)


@ORIGINS
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_an_origin_lets_go_of_what_the_copy_has(pair: Pair, retention: str) -> None:
    """It keeps messages for a copy that is down: its consumer stays until the copy is deleted."""
    pair.origin.create("O", subjects=["o.>"], retention=retention)
    pair.copy.create("S", sources=[source()])
    wait_until(lambda: pair.origin.consumer_names("O"), CAUGHT_UP_S)
    pair.origin.publish("o.a", 1, 20)
    pair.copy.wait_for("S", messages=20)
    pair.origin.wait_for("O", messages=0)

    pair.copy.stop()
    pair.origin.publish("o.a", 21, 30)
    pair.origin.wait_for("O", messages=10)
    pair.copy.start()
    pair.copy.wait_for("S", messages=30)
    pair.origin.wait_for("O", messages=0)
    assert list(range(1, 31)) == copies(pair.copy)

    pair.copy.call("STREAM.DELETE.S")
    wait_until(lambda: not pair.origin.consumer_names("O"), CAUGHT_UP_S)


@ORIGINS
def test_a_consumer_of_the_operator_is_read_by(pair: Pair) -> None:
    pair.origin.create("O", subjects=["o.>"], retention="workqueue")
    consumer = {
        "durable_name": "C",
        "deliver_subject": "to.copy",
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
        "max_ack_pending": 100,
    }
    answer = pair.origin.call("CONSUMER.DURABLE.CREATE.O.C", stream_name="O", config=consumer)
    assert "error" not in answer, answer
    pair.origin.publish("o.a", 1, 300)
    named = {"consumer": {"name": "C", "deliver_subject": "to.copy"}}
    pair.copy.create("S", sources=[source(**named)])
    pair.copy.wait_for("S", messages=300)
    pair.origin.wait_for("O", messages=0)

    pair.copy.stop()
    pair.origin.publish("o.a", 301, 310)
    pair.copy.start()
    pair.copy.wait_for("S", messages=310)
    assert list(range(1, 311)) == copies(pair.copy)

    pair.copy.call("STREAM.DELETE.S")
    assert ["C"] == pair.origin.consumer_names("O")


def direct_consumers(port: int) -> int:
    """Return how many consumers of other streams a nats-server has."""
    url = f"http://{HOST}:{port}/jsz?streams=1&consumers=1&direct-consumers=1"
    with urllib.request.urlopen(url) as answer:
        details = json.load(answer)["account_details"]
    streams = [each for account in details for each in account.get("stream_detail", ())]
    return sum(len(each.get("direct_consumer_detail") or ()) for each in streams)


def test_no_consumer_is_left_behind(tmp_path: Path) -> None:
    pair = Pair(NATS_SERVER, tmp_path)
    pair.origin.config += "\nhttp_port: -1"
    with pair:
        port = pair.origin.http_port
        fill(pair.origin)
        pair.copy.create("M", **mirror())
        pair.copy.create("S", sources=[source()])
        wait_until(lambda: 2 == direct_consumers(port), CAUGHT_UP_S)

        pair.copy.call("STREAM.DELETE.M")
        wait_until(lambda: 1 == direct_consumers(port), CAUGHT_UP_S)
        pair.copy.stop()
        assert 0 == direct_consumers(port)


def test_a_copy_over_tls_with_a_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.server(), authority.client("copier")
    tls = f'ca_file: "{authority.ca}", cert_file: "{client.cert}", key_file: "{client.key}"'
    pair = Pair(NATS_SERVER, tmp_path, more=f"user: ann, password: wrong, tls {{ {tls} }}")
    pair.origin.config += f"""
        tls {{ cert_file: "{server.cert}", key_file: "{server.key}"
               ca_file: "{authority.ca}", verify: true }}
        allow_non_tls: true
        authorization {{ users [ {{ user: ann, password: secret }} ] }}
    """
    pair.origin.login = {"user": "ann", "pass": "secret"}
    with pair:
        fill(pair.origin)
        pair.copy.create("M", **mirror())
        wait_for_error(pair.copy, "M", "Authorization Violation")
        assert "remote `hub`: login refused" in pair.copy.log

        pair.copy.kill()
        pair.copy.config = pair.copy.config.replace("wrong", "secret")
        pair.copy.start()
        pair.copy.wait_for("M", last_seq=19)
        assert pair.origin.contents("O") == pair.copy.contents("M")


def test_a_copy_with_credentials(tmp_path: Path) -> None:
    """A creds file for the copy; whoever fills the origin comes with a token that is enough."""
    account, system, user = Key(ACCOUNT), Key(ACCOUNT), Key(USER)
    realm = Realm(system_account=system.public)
    realm.sign(system, "SYS")
    kinds = ("mem_storage", "disk_storage", "streams", "consumer")
    realm.sign(account, "A", limits=dict.fromkeys(kinds, -1))
    claims = {"type": "user", **NO_LIMITS}
    token = account.jwt(user.public, "user", claims)
    path = write_credentials(tmp_path / "copy.creds", token, user.seed)
    pair = Pair(NATS_SERVER, tmp_path, more=f'credentials: "{path}"')
    pair.origin.config += f"\n{realm.config}"
    bearer = account.jwt(Key(USER).public, "asker", {**claims, "bearer_token": True})
    pair.origin.login = {"jwt": bearer}
    with pair:
        fill(pair.origin)
        pair.copy.create("M", **mirror())
        pair.copy.wait_for("M", last_seq=19)
        assert pair.origin.contents("O") == pair.copy.contents("M")


def test_a_copy_without_the_permission_says_which(tmp_path: Path) -> None:
    pair = Pair(NATS_SERVER, tmp_path, more="user: bob, password: secret")
    pair.origin.config += """
        authorization { users [
            { user: ann, password: secret }
            { user: bob, password: secret
              permissions { publish: "_INBOX.>", subscribe: "_INBOX.>" } }
        ] }
    """
    pair.origin.login = {"user": "ann", "pass": "secret"}
    with pair:
        fill(pair.origin)
        pair.copy.create("M", **mirror())
        wait_for_error(pair.copy, "M", 'Permissions Violation for Publish to "$JS.API.CONSUMER')


@REAL
def test_a_bucket_is_mirrored(pair: Pair) -> None:
    bucket = {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True}
    pair.origin.create("KV_B", subjects=["$KV.B.>"], discard="new", **bucket)
    pair.origin.publish("$KV.B.color", 1, 3)
    pair.origin.publish("$KV.B.size", 4, 4)
    options = {**bucket, **mirror("KV_B"), "discard": "new"}
    pair.copy.create("KV_B", **options)
    pair.copy.wait_for("KV_B", last_seq=4)

    answer = pair.copy.call("STREAM.MSG.GET.KV_B", last_by_subj="$KV.B.color")
    assert 3 == answer["message"]["seq"]
    assert pair.origin.contents("KV_B") == pair.copy.contents("KV_B")


def test_an_origin_in_another_account_is_reached_by_imports(tmp_path: Path) -> None:
    """The same configuration and the same request, at nats-server and at ours."""
    config = """
        accounts {
            A {
                jetstream: enabled
                users [ { user: a, password: a } ]
                exports [
                    { service: "$JS.API.CONSUMER.>", response_type: stream }
                    { service: "$JS.FC.>" }
                    { stream: "to.b.>" }
                ]
            }
            B {
                jetstream: enabled
                users [ { user: b, password: b } ]
                imports [
                    { service: { account: A, subject: "$JS.API.CONSUMER.>" }
                      to: "of.a.CONSUMER.>" }
                    { service: { account: A, subject: "$JS.FC.>" } }
                    { stream: { account: A, subject: "to.b.>" } }
                ]
            }
        }
    """
    for program in PROGRAMS:
        store = f'jetstream {{ store_dir: "{tmp_path / program.name}" }}\n'
        server = Server(program, tmp_path, store + config)
        try:
            server.login = {"user": "a", "pass": "a"}
            server.start()
            fill(server)
            expected = server.contents("O")
            server.login = {"user": "b", "pass": "b"}
            origin = {"name": "O", "external": {"api": "of.a", "deliver": "to.b"}}
            server.create("M", mirror=origin)
            server.create("S", sources=[origin])
            server.wait_for("M", last_seq=19)
            server.wait_for("S", messages=14)
            assert expected == server.contents("M")
        finally:
            server.kill()


def test_a_prefix_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    server = Server(PENSTOCK, tmp_path)
    try:
        server.start()
        answer = server.call("STREAM.CREATE.M", name="M", **mirror())
        assert 10052 == answer["error"]["err_code"]
        assert "under `jetstream.remotes`" in answer["error"]["description"]
    finally:
        server.kill()
