"""Every JetStream transcript, held with the real server and with ours."""

from __future__ import annotations

import pytest
from tests.conformance import jsrequests
from tests.conformance.jsrequests import Transcript
from tests.conftest import Servers
from tests.servers import NATS_SERVER, Program


@pytest.mark.parametrize("transcript", jsrequests.load_all(), ids=lambda each: each.path.stem)
def test_jetstream_answers_as_nats_server_does(
    transcript: Transcript, program: Program, servers: Servers
) -> None:
    server = servers(program, jsrequests.CONFIG)

    # The real one works on several threads, so its answers are mostly the same.
    for _ in range(3 if program is NATS_SERVER else 1):
        actual = jsrequests.play(transcript, server.port).lines()
        if actual == transcript.lines():
            break

    assert transcript.lines() == actual
