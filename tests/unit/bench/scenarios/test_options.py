"""The command line of `penstock bench`, nats-bench's own included."""

import pytest

from penstock.bench.scenarios.options import parse_compare, parse_run
from penstock.bench.scenarios.plan import Plan
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    "line",
    [
        "--subject foo --num-subs 100 --num-pubs 10 --num-msgs 5000 --msg-size 1000",
        "-ns 100 -np 10 -n 5000 -ms 1000 foo",
        "foo -ns 100 -np 10 -n 5000 -ms 1000",
        "-ns=100 -np=10 foo --num-msgs=5000 -ms=1000",
    ],
)
def test_long_and_short_forms_mean_the_same(line):
    plan = parse_run(line.split()).plan

    assert (
        Plan(subject="foo", subscribers=100, publishers=10, messages=5000, size_bytes=1000) == plan
    )


def test_without_a_subject_one_is_made_that_nobody_uses():
    assert parse_run([]).plan.subject != parse_run([]).plan.subject


def test_servers_may_be_repeated_or_listed():
    options = parse_run("--server penstock,nats -s nats://127.0.0.1:4222 --server nats".split())

    assert ("penstock", "nats", "nats://127.0.0.1:4222") == options.servers
    assert 3 == options.rounds


def test_one_server_is_measured_once():
    assert (("penstock",), 1) == (parse_run([]).servers, parse_run([]).rounds)


def test_a_quick_comparison_has_one_round():
    assert (3, 1) == (parse_compare([]).rounds, parse_compare(["--quick"]).rounds)
    assert ("penstock", "nats") == parse_compare([]).servers


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("foo bar", "only one subject is possible"),
        ("foo.*", "`foo.*` is not a valid subject"),
        ("--num-msgs 0", "`messages` must be positive"),
        ("--msg-size -1", "`size_bytes` cannot be negative"),
        ("--num-pubs 0", "needs a publisher"),
        ("--scenario request --num-subs 0", "needs a subscriber"),
        ("--scenario requets", "did you mean `request`"),
        ("--server nat", "did you mean `nats`"),
        ("--server elsewhere", "or a URL"),
        ("--rounds 0", "`rounds` must be positive"),
        ("-np 10 -n 5", "too few"),
        ("--scenario js-pull --rate 5", "does not support a rate"),
        ("--storage tape", "is not a storage type"),
        ("--num-pub 3", "did you mean -num-pubs"),
    ],
)
def test_a_wrong_option_is_named_with_a_remedy(line, text):
    with pytest.raises(ConfigError, match=text.replace("*", r"\*")):
        parse_run(line.split())


def test_a_comparison_takes_no_subject():
    with pytest.raises(ConfigError, match="too many"):
        parse_compare(["foo"])


def test_messages_are_shared_out_to_the_last_one():
    plan = Plan(publishers=3, messages=11)

    assert [4, 4, 3] == [plan.share(publisher) for publisher in range(3)]
