"""Verbs, their arguments and their help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.cli.arguments import Verb, argument, find_verb, parse
from penstock.cli.consumer.consumer import VERBS as CONSUMER_VERBS
from penstock.cli.kv.kv import VERBS as KV_VERBS
from penstock.cli.main import main
from penstock.cli.manual import command_help, verb_help
from penstock.cli.stream.stream import VERBS as STREAM_VERBS
from penstock.errors import ConfigError


async def nothing(context: Any) -> None:
    """Do nothing."""


def test_options_may_stand_between_the_arguments() -> None:
    verb = Verb(
        name="v",
        summary="",
        run=nothing,
        arguments=(
            argument("first", doc=""),
            argument("second", nargs="?", doc=""),
            argument("--raw", action="store_true", doc=""),
        ),
    )

    given = parse(verb, ["a", "--raw", "b"])
    assert (given.first, given.second, given.raw) == ("a", "b", True)
    with pytest.raises(ConfigError, match="missing: FIRST"):
        parse(verb, [])
    with pytest.raises(ConfigError, match="unknown option `--ra`; hint: did you mean `--raw`"):
        parse(verb, ["a", "--ra"])


def test_a_verb_is_found_by_any_of_its_names() -> None:
    assert find_verb("stream", STREAM_VERBS, "list").name == "ls"
    with pytest.raises(ConfigError, match="did you mean `purge`"):
        find_verb("stream", STREAM_VERBS, "prge")
    with pytest.raises(ConfigError, match="hint: penstock stream ls --names"):
        find_verb("stream", STREAM_VERBS, "--names")
    with pytest.raises(ConfigError, match=r"unknown option `--sort`$"):
        parse(find_verb("stream", STREAM_VERBS, "ls"), ["--sort"])


@pytest.mark.parametrize("verbs", [STREAM_VERBS, CONSUMER_VERBS, KV_VERBS])
def test_help_has_every_verb_and_every_option(verbs: Sequence[Verb]) -> None:
    text = command_help("x", "Summary.", verbs)
    assert all(f"  {verb.name}" in text for verb in verbs)
    for verb in verbs:
        page = verb_help(f"x {verb.name}", verb)
        assert all(option.spelling in page for option in verb.options if option.doc)


@pytest.mark.parametrize(
    "words",
    [
        ["stream"],
        ["stream", "help"],
        ["stream", "--help"],
        ["stream", "create", "--help"],
        ["stream", "help", "create"],
        ["consumer", "next", "-h"],
        ["kv", "get", "bucket", "key", "--help"],
        ["pub", "--help"],
    ],
    ids=" ".join,
)
def test_help_needs_no_server(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(words)

    assert capsys.readouterr().out.startswith(f"Usage: penstock {words[0]} ")


@pytest.mark.parametrize("words", [["stream"], ["stream", "create"], ["pub"], ["serve"]])
def test_help_comes_before_a_command_or_behind_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main(["help", *words])
    before = capsys.readouterr().out
    assert 0 == main([*words, "--help"])

    assert before == capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "stream", "ls", "-s", "nats://127.0.0.1:1"],
        ["stream", "--server=nats://127.0.0.1:1", "--json", "ls"],
        ["-s", "nats://127.0.0.1:1", "pub", "a", "b"],
    ],
    ids=" ".join,
)
def test_shared_options_may_come_before_the_verb(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == main(words)

    assert "127.0.0.1:1: connection refused" in capsys.readouterr().err


def test_what_looks_like_help_behind_two_dashes_is_a_payload(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 1 == main(["pub", "-s", "nats://127.0.0.1:1", "a", "--", "--help"])

    assert "no server could be reached" in capsys.readouterr().err
