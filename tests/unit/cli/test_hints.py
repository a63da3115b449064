"""Errors as people see them."""

from __future__ import annotations

from penstock.cli.hints import Complaint, complaint_of, not_found
from penstock.errors import ApiError, ConfigError, ConnectFailed, JetStreamError, RequestTimeout


def test_an_error_has_its_hint_on_a_line_of_its_own() -> None:
    assert str(complaint_of(ConfigError("bad; hint: try"))) == "penstock: bad\nhint: try"
    assert str(complaint_of(ConfigError("bad"))) == "penstock: bad"
    assert complaint_of(RequestTimeout("late")).hint == "wait longer with --timeout"
    disabled = JetStreamError(ApiError(503, 10076, "JetStream not enabled"))
    assert complaint_of(disabled).hint == "start the server with JetStream: penstock serve -js"


def test_what_was_meant_is_found_in_any_case() -> None:
    assert not_found("stream", "orders", ["ORDERS", "X"], command="c") == Complaint(
        "no stream `orders`", "did you mean `ORDERS`?"
    )
    assert not_found("stream", "a", ["ZZZ"], command="c").hint == "c ls"
    assert not_found("stream", "a", [], command="c").hint == "c create"


def test_an_error_of_the_system_is_told_in_its_words() -> None:
    error = ConnectFailed("h:1: [Errno 111] Connect call failed ('127.0.0.1', 1); j:2: timed out")

    assert complaint_of(error).text == "h:1: connection refused; j:2: timed out"
