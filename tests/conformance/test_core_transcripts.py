"""Every transcript, held with the real server and with ours."""

from __future__ import annotations

import pytest
from tests.conformance import transcripts
from tests.conformance.transcripts import Transcript
from tests.conftest import Servers
from tests.servers import PROGRAMS, Program

CASES = [
    pytest.param(transcript, program, id=f"{program.name}-{transcript.title}")
    for program in PROGRAMS
    for transcript in transcripts.load_all()
    if transcript.is_for(program)
]


@pytest.mark.parametrize(("transcript", "program"), CASES)
def test_a_server_answers_as_nats_server_does(
    transcript: Transcript, program: Program, servers: Servers
) -> None:
    server = servers(program, transcript.config)

    actual = transcripts.play(transcript, server.port)

    assert transcript.lines == transcripts.agree(transcript.lines, actual)
