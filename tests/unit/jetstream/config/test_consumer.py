"""The options of a consumer that say what it is for."""

from __future__ import annotations

import pytest

from penstock.jetstream.config.consumer import ConsumerConfig


@pytest.mark.parametrize("option", ["direct", "sourcing"])
def test_a_consumer_that_serves_another_stream_is_private(option: str) -> None:
    assert not ConsumerConfig().is_private
    assert ConsumerConfig(**{option: True}).is_private
