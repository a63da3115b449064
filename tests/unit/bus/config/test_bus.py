"""The bus's configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import penstock.bus
from penstock.bus import EventBus
from penstock.bus.config.bus import GIB, PRESETS, BusConfig, TopicOptions
from penstock.bus.config.loading import load_config
from penstock.bus.config.reference import settings_page
from penstock.errors import ConfigError

NOTHING: dict[str, str] = {}

MISSION = """
eventbus:
  type: nats
  nats:
    urls: [nats://one:4222, nats://two:4222]
    jetstream:
      enabled: true
      consumer: {max_ack_pending: 2000, max_waiting: 600, ack_wait: 45s}
      stream: {max_bytes: 3GB, max_msgs: 3000000}
  topics:
    orders.created: {persistence: persistent, retention: 7d, max_bytes: 1MB}
    clicks: {persistence: ephemeral}
"""


def load(source: Any = None, **settings: Any) -> BusConfig:
    return load_config(source, **({"environment": NOTHING} | settings))


def test_nothing_given_is_the_defaults() -> None:
    assert BusConfig() == load()


def test_the_shape_of_the_mission_is_read() -> None:
    config = load(MISSION)
    jetstream = config.nats.jetstream

    assert ("nats", ("nats://one:4222", "nats://two:4222")) == (config.type, config.nats.urls)
    assert (2000, 600, 45.0) == (
        jetstream.consumer.max_ack_pending,
        jetstream.consumer.max_waiting,
        jetstream.consumer.ack_wait,
    )
    assert (3 * GIB, 3_000_000) == (jetstream.stream.max_bytes, jetstream.stream.max_msgs)
    assert {
        "orders.created": TopicOptions(
            persistence="persistent", retention=7 * 86_400, max_bytes=1024**2
        ),
        "clicks": TopicOptions(persistence="ephemeral"),
    } == config.topics


def test_a_file_may_be_written_in_camel_case(tmp_path: Path) -> None:
    path = tmp_path / "bus.yaml"
    path.write_text("eventbus: {nats: {jetstream: {consumer: {maxAckPending: 7}}}}")

    assert 7 == load(path).nats.jetstream.consumer.max_ack_pending


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("balanced", (1000, 512, 30.0, GIB, 1_000_000)),
        ("high_throughput", (10_000, 1000, 30.0, 2 * GIB, 2_000_000)),
        ("low_latency", (500, 256, 10.0, GIB, 1_000_000)),
    ],
)
def test_presets_are_those_of_the_mission(name: str, figures: tuple[float, ...]) -> None:
    jetstream = load(preset=name).nats.jetstream
    consumer, stream = jetstream.consumer, jetstream.stream

    assert figures == (
        consumer.max_ack_pending,
        consumer.max_waiting,
        consumer.ack_wait,
        stream.max_bytes,
        stream.max_msgs,
    )
    assert name in PRESETS


def test_the_file_wins_over_the_preset_and_the_environment_over_both() -> None:
    source = {"preset": "low_latency", "nats": {"jetstream": {"consumer": {"max_waiting": 1}}}}
    variables = {
        "PENSTOCK_BUS_NATS_JETSTREAM_CONSUMER_ACK_WAIT": "250ms",
        "PENSTOCK_BUS_NATS_URLS": "nats://a, nats://b",
        "PENSTOCK_BUS_PUBLISHER_DEDUPLICATE": "no",
        "OTHER": "x",
    }

    config = load(source, environment=variables)
    consumer = config.nats.jetstream.consumer

    assert (500, 1, 0.25) == (consumer.max_ack_pending, consumer.max_waiting, consumer.ack_wait)
    assert (("nats://a", "nats://b"), False) == (config.nats.urls, config.publisher.deduplicate)


def test_the_environment_may_choose_the_preset() -> None:
    config = load(environment={"PENSTOCK_BUS_PRESET": "high_throughput"})

    assert (10_000, False) == (config.publisher.max_pending, config.publisher.deduplicate)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"tpye": "nats"}, "`eventbus.tpye` is unknown; hint: `type`"),
        (
            {"nats": {"jetstream": {"consumer": {"maxAckPendign": 1}}}},
            "hint: `max_ack_pending`",
        ),
        ({"topics": {"a": {"retntion": "1s"}}}, "`eventbus.topics.a.retntion` is unknown"),
        ({"type": "kavka"}, "must be one of nats, embedded"),
        ({"nats": []}, "`eventbus.nats` must be a section"),
        ({"nats": {"urls": {"a": 1}}}, "`eventbus.nats.urls` must be text"),
        ({"nats": {"urls": None}}, "`eventbus.nats.urls` has no value"),
        ({"topics": 5}, "`eventbus.topics` must be a section"),
        ({"publisher": {"deduplicate": "maybe"}}, "true or false"),
        ({"publisher": {"max_pending": "many"}}, "must be a number"),
        ({"publisher": {"max_pending": 0}}, "`max_pending` must be more than 0"),
        ({"publisher": {"rate": -1}}, "must not be negative"),
        ("subscriber: {backoff: .nan}", "`backoff` must be a finite number"),
        ("shutdown_timeout: .inf", "`shutdown_timeout` must be a finite number"),
        ({"backlog": {"max_age": "nan"}}, "`max_age` must be a finite number"),
        ({"topics": {"a": {"retention": "inf"}}}, "`retention` must be a finite number"),
        (
            {"publisher": {"publish_timeout": "10m"}},
            "`publish_timeout` (600 s) is longer than `duplicate_window` (120 s)",
        ),
        (
            {"nats": {"jetstream": {"stream": {"duplicate_window": "1m"}}}},
            "`publish_timeout` (120 s) is longer than `duplicate_window` (60 s)",
        ),
        ({"shutdown_timeout": "soon"}, "30s"),
        ({"service": "a.b"}, "A-Z a-z 0-9"),
        ({"service": "ünï"}, "A-Z a-z 0-9"),
        ({"namespace": "a\n"}, "A-Z a-z 0-9"),
        ({"service": {"x": 1}}, "must be text"),
        ("service: yes", "`eventbus.service` must be text, not True; hint: put it in quotes"),
        ("service: 007", "`eventbus.service` must be text, not 7; hint: put it in quotes"),
        ("topics: {on: {}}", "`eventbus.topics`: the name True is not text; hint: put it in"),
        ("topics: {~: {}}", "`eventbus.topics`: the name None is not text"),
        ({"subscriber": {"dead_letter_prefix": "a b"}}, "`dead_letter_prefix` must be of A-Z"),
        ({"subscriber": {"dead_letter_prefix": ""}}, "`dead_letter_prefix` must be of A-Z"),
        (
            {"subscriber": {"dead_letter_prefix": "a"}, "topics": {"a.b": {}}},
            "`topics`: `a.b` begins with the `dead_letter_prefix`",
        ),
        (
            {"nats": {"urls": "nats://a"}, "kafka": {"brokers": "a:1"}},
            "`nats.urls` and `kafka.brokers` are both set; hint: say which one counts with `type`",
        ),
        ({"preset": "fastest"}, "`fastest` is unknown"),
        ({"eventbus": {}, "nats": {}}, "`nats` is unknown beside `eventbus`"),
        ({"eventbus": 1}, "`eventbus` must be a section"),
        ("- a", "must be a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_what_makes_no_sense_is_said(source: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(source)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"servcie": "x"}, "`servcie` is unknown; hint: `service`"),
        ({"subscriber": {"max_attempts": 3}}, "`subscriber` must be a `SubscriberConfig(…)`"),
    ],
)
def test_what_a_program_gives_is_looked_at_too(settings: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EventBus.open("embedded:", **settings)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("source", "environment", "engine"),
    [
        ({}, {}, "embedded"),
        ({"nats": {"jetstream": {"enabled": True}}}, {}, "embedded"),
        ({"nats": {"urls": "nats://a"}}, {}, "nats"),
        ({"kafka": {"brokers": "a:1"}}, {}, "kafka"),
        ({}, {"PENSTOCK_BUS_NATS_URLS": "nats://a"}, "nats"),
        ({"nats": {"urls": "nats://a"}}, {"PENSTOCK_BUS_TYPE": "embedded"}, "embedded"),
        ({"type": "kafka"}, {"PENSTOCK_BUS_NATS_URLS": "nats://a"}, "kafka"),
    ],
)
def test_a_broker_that_is_named_is_the_one_that_is_used(
    source: Any, environment: dict[str, str], engine: str
) -> None:
    assert load(source, environment=environment).type == engine


def test_an_unknown_variable_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="hint: `PENSTOCK_BUS_SERVICE`"):
        load(environment={"PENSTOCK_BUS_SERVCE": "x"})


def test_every_setting_is_read_by_something() -> None:
    folder = Path(penstock.bus.__file__).parent
    files = [path for path in folder.rglob("*.py") if path.parent.name != "config"]
    read = {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }

    assert set() == set(_settings(BusConfig)) - read


def _settings(kind: Any) -> Iterator[str]:
    hints = get_type_hints(kind)
    for item in fields(kind):
        yield item.name
        if is_dataclass(hints[item.name]):
            yield from _settings(hints[item.name])
    if kind is BusConfig:
        yield from _settings(TopicOptions)


def test_names_in_a_file_have_their_bound_first_and_no_unit() -> None:
    names = re.findall(r"^\| `(\w+)` \|", settings_page(), re.MULTILINE)

    assert [] == [name for name in names if re.search(r"_(s|ms|max|min)$", name)]


def test_the_reference_of_settings_is_fresh() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "eventbus.md"

    assert settings_page() == page.read_text(encoding="utf-8")


def test_a_section_whose_keys_are_commented_out_is_empty() -> None:
    empty = "eventbus:\n  nats:\n    # user: me\n  topics:\n    orders:\n"

    assert BusConfig(topics={"orders": TopicOptions()}) == load(empty)
    assert "me" == load(empty, environment={"PENSTOCK_BUS_NATS_USER": "me"}).nats.user
    with pytest.raises(ConfigError, match="`nats` must be a section"):
        load("nats: 5", environment={"PENSTOCK_BUS_NATS_USER": "me"})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml` cannot be read"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "number"), [("10k", 10_000), ("10KB", 10_240), ("1 MiB", 1024**2), ("2g", 2 * 10**9)]
)
def test_sizes_are_read_as_in_the_configuration_of_the_server(text: str, number: int) -> None:
    assert number == load({"embedded": {"port": text}}).embedded.port


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("eventbus: {service: null}", "`eventbus.service` has no value"),
        ("eventbus: {subscriber: {maxAttempts: 3, max_attempts: 4}}", "are the same"),
        ("eventbus: {topics: {a: {maxBytes: 1, max_bytes: 2}}}", "are the same"),
        ("eventbus:\n  service: a\n  service: b\n", "`service` is there twice"),
        ("eventbus: {subscriber: {backoff: 500}}", "`backoff` .* is longer than `max_backoff`"),
    ],
)
def test_a_file_that_says_two_things_or_nothing_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(text, environment=NOTHING)
