"""What consumers deliver and answer, held with the real server and with ours."""

from __future__ import annotations

import pytest
from tests.conformance import jsdeliveries
from tests.conformance.jsdeliveries import Conversation
from tests.servers import NATS_SERVER, Program, ServerProcess


@pytest.mark.parametrize("conversation", jsdeliveries.load_all(), ids=lambda each: each.path.stem)
def test_consumers_deliver_as_nats_server_does(
    conversation: Conversation, program: Program
) -> None:
    # The real one serves requests from several threads, so its order is mostly the same.
    for _ in range(3 if program is NATS_SERVER else 1):
        with ServerProcess(program, conversation.config) as server:
            actual = jsdeliveries.play(conversation, server.port).lines()
        if actual == conversation.lines():
            break

    assert conversation.lines() == actual
