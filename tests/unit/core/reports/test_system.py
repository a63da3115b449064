"""What the server tells a client about itself."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.core.peers import Later

from penstock.config.accounts import Permissions, ResponseRules, SubjectRules, User
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, ServerConfig
from penstock.core.broker import Broker
from penstock.core.session import Session
from penstock.protocol.version import FEATURE_FLAGS, NATS_VERSION

CONNECT = b'CONNECT {"headers":true,"no_responders":true,"verbose":false%b}\r\nSUB _INBOX.> 1\r\n'
ASK = b"PUB $SYS.REQ.USER.INFO _INBOX.x 0\r\n\r\n"


def broker(**settings: Any) -> Broker:
    return Broker(
        ServerConfig(**settings),
        server_id="NID",
        clock_ns=lambda: 0,
        random=lambda: 0.0,
        random_bytes=bytes,
        call_later=Later,
    )


def client(broker: Broker, options: bytes = b"") -> Session:
    session = broker.open("127.0.0.1", 1)
    session.receive(CONNECT % options)
    session.outbox.clear()
    return session


def answers(session: Session) -> list[dict[str, Any]]:
    sent = [entry[0].join(entry[1]) if type(entry) is tuple else entry for entry in session.outbox]
    session.outbox.clear()
    return [json.loads(each.split(b"\r\n")[1]) for each in sent if each.startswith(b"MSG")]


def test_a_client_is_told_its_user_and_account() -> None:
    session = client(broker(server_name="me", host="127.0.0.1"))
    session.receive(ASK)

    assert answers(session) == [
        {
            "server": {
                "name": "me",
                "host": "127.0.0.1",
                "id": "NID",
                "ver": NATS_VERSION,
                "feature_flags": FEATURE_FLAGS,
                "jetstream": False,
                "flags": 0,
                "seq": 1,
                "time": "1970-01-01T00:00:00Z",
            },
            "data": {"user": "", "account": "$G", "account_name": "$G"},
        }
    ]


def test_a_client_is_told_what_it_may_do() -> None:
    permissions = Permissions(
        publish=SubjectRules(allow=("$SYS.REQ.USER.INFO",), deny=("x",)),
        subscribe=SubjectRules(allow=("_INBOX.>", "q w")),
        allow_responses=ResponseRules(messages_max=3, expires_s=0.5),
    )
    users = (User(name="bob", password="pw", permissions=permissions),)
    session = client(broker(authorization=Authorization(users=users)), b',"user":"bob","pass":"pw"')
    session.receive(ASK)

    (answer,) = answers(session)

    assert answer["data"] == {
        "user": "bob",
        "account": "$G",
        "account_name": "$G",
        "permissions": {
            "publish": {"allow": ["$SYS.REQ.USER.INFO"], "deny": ["x"]},
            "subscribe": {"allow": ["_INBOX.>", "q w"]},
            "responses": {"max": 3, "ttl": 500_000_000},
        },
    }


def test_a_client_is_told_whether_there_is_jetstream_and_the_labels_of_the_server() -> None:
    config = {"server_tags": ("a",), "server_metadata": {"k": "v"}}
    session = client(broker(jetstream=JetStreamConfig(store_dir="/nowhere"), **config))
    session.receive(ASK)

    (answer,) = answers(session)

    assert (answer["server"]["jetstream"], answer["server"]["flags"]) == (True, 1)
    assert (answer["server"]["tags"], answer["server"]["metadata"]) == (["a"], {"k": "v"})


def test_each_of_several_requests_is_answered_in_order() -> None:
    session = client(broker())
    session.receive(ASK + ASK)

    assert [answer["server"]["seq"] for answer in answers(session)] == [1, 2]


def test_who_gives_no_reply_subject_and_the_server_itself_are_told_nothing() -> None:
    served = broker()
    session = client(served)
    session.receive(b"PUB $SYS.REQ.USER.INFO 0\r\n\r\n")
    served.default_account.send(b"$SYS.REQ.USER.INFO", b"", reply=b"_INBOX.x")

    assert answers(session) == []


def test_a_client_without_rules_on_responses_is_told_none() -> None:
    permissions = Permissions(subscribe=SubjectRules(deny=("secret",)))
    users = (User(name="erin", password="pw", permissions=permissions),)
    session = client(
        broker(authorization=Authorization(users=users)), b',"user":"erin","pass":"pw"'
    )
    session.receive(ASK)

    (answer,) = answers(session)

    assert answer["data"]["permissions"] == {"publish": {}, "subscribe": {"deny": ["secret"]}}
