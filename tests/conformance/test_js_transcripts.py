"""Every JetStream transcript, held with the real server and with ours."""

from __future__ import annotations

import pytest
from tests.conformance import jsrequests
from tests.conformance.jsrequests import Transcript
from tests.conftest import Servers
from tests.servers import Program


@pytest.mark.parametrize("transcript", jsrequests.load_all(), ids=lambda each: each.path.stem)
def test_jetstream_answers_as_nats_server_does(
    transcript: Transcript, program: Program, servers: Servers
) -> None:
    server = servers(program, jsrequests.CONFIG)

    actual = jsrequests.play(transcript, server.port)

    assert transcript.lines() == actual.lines()
