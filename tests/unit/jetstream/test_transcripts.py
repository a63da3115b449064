"""What nats-server was heard to answer, answered by the engine alone."""

from pathlib import Path

import pytest
from tests.conformance import jsrequests
from tests.conformance.jsrequests import Transcript
from tests.unit.jetstream.world import World


@pytest.mark.parametrize("transcript", jsrequests.load_all(), ids=lambda each: each.path.stem)
def test_the_engine_answers_as_nats_server_does(transcript: Transcript, tmp_path: Path) -> None:
    world = World(tmp_path)
    for exchange in transcript.exchanges:
        world.send(exchange.encode("_INBOX.t"))
        world.settle()

        ((_, answer),) = world.deliveries()

        assert exchange.answer == jsrequests.normalized(answer)
        world.now_ns += 1000
