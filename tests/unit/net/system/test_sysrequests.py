"""What the system account may ask of a server, when it asks for nonsense."""

from __future__ import annotations

import json

import pytest
from tests.unit.net.streams import connected, run

from penstock.config.accounts import Account, User
from penstock.config.server import Authorization
from penstock.net.server import Server

SYS = Account(name="SYS", users=(User(name="admin", password="x"),))
AUTHORIZATION = Authorization(accounts=(SYS,), system_account="SYS")
CONNECT = b'CONNECT {"verbose":false,"headers":true,"user":"admin","pass":"x"}\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("VARZ", '{"server_name":1}', "`server_name` is no str"),
        ("VARZ", '{"tags":"x"}', "`tags` is no list"),
        ("VARZ", '{"tags":[[]]}', "`tags` are texts"),
        ("KICK", '{"cid":[]}', "`cid` is no int"),
        ("KICK", "[" * 5000, "maximum recursion depth exceeded"),
        ("KICK", "[]", "a request is a JSON object, or empty"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_costs_nothing(
    kind: str, body: str, told: str
) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            subject = f"$SYS.REQ.SERVER.{server.broker.server_id}.{kind}"
            await client.says(CONNECT + b"SUB r 1\r\n")
            await client.says(f"PUB {subject} r {len(body)}\r\n{body}\r\n".encode())
            _, answer = await client.settle()
            error = json.loads(answer)["error"]

            assert error["code"] == 400
            assert error["description"].startswith(told)

    run(scenario, authorization=AUTHORIZATION)
