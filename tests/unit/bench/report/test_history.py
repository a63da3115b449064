"""The history keeps sound results and marks a regression."""

import json

import pytest

from penstock.bench.report import history
from penstock.bench.report.histogram import Histogram
from penstock.bench.report.result import Outcome, Sample
from penstock.bench.scenarios.plan import Plan


def outcome(rate, *, latency_ns=0, **fields):
    plan = fields.pop("plan", Plan(messages=1000))
    histogram = Histogram()
    if latency_ns:
        histogram.record(latency_ns)
    sample = Sample(1000, 128, 1, 1 + round(1000 / rate * 1e9))
    return Outcome(
        plan=plan,
        server="penstock",
        publishers=[sample],
        latency_ns=histogram,
        expected=1000,
        received=fields.pop("received", 1000),
        **fields,
    )


def only_trend(where):
    (trend,) = history.trends(history.read(where))
    return trend


def test_results_come_back_in_order(tmp_path):
    where = tmp_path / "deep" / "bench.jsonl"
    history.append([outcome(1000)], where)
    history.append([outcome(2000)], where)

    assert [1000, 2000] == [round(entry["rate"]) for entry in history.read(where)]


def test_results_with_losses_or_cut_short_are_not_kept(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(1, received=999), outcome(1, interrupted=True)], where)

    assert [] == history.read(where)


def test_a_line_cut_off_by_a_crash_costs_only_itself(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(1000), outcome(2000)], where)
    where.write_text(where.read_text()[:-20])

    assert [1000] == [round(entry["rate"]) for entry in history.read(where)]


def test_a_lower_rate_than_usual_is_a_regression(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(rate) for rate in (1000, 1050, 980, 700)], where)

    trend = only_trend(where)

    assert trend.regressed
    assert -0.3 == pytest.approx(trend.change)


def test_chance_is_no_regression(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(rate) for rate in (1000, 1050, 980, 900)], where)

    assert not only_trend(where).regressed


def test_of_latency_more_is_worse(tmp_path):
    where = tmp_path / "bench.jsonl"
    plan = Plan(scenario="request", messages=1000)
    times = (100, 100, 150)
    history.append([outcome(1000, latency_ns=time, plan=plan) for time in times], where)

    assert only_trend(where).regressed


def test_one_result_is_no_trend(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(1000)], where)

    assert only_trend(where).change is None
    assert not only_trend(where).regressed


def test_only_like_is_compared_with_like(tmp_path):
    where = tmp_path / "bench.jsonl"
    plans = (Plan(messages=1000), Plan(messages=1000, size_bytes=16), Plan(messages=1000, rate=9))
    history.append([outcome(1000, latency_ns=5, plan=plan) for plan in plans], where)

    assert 3 == len(history.trends(history.read(where)))


def test_the_trend_is_drawn(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(rate) for rate in (250, 500, 1000)], where)

    assert "▃▅█" == only_trend(where).sparks


def test_the_history_lies_where_data_of_programs_does():
    assert "/data/penstock/bench.jsonl" == str(history.path({"XDG_DATA_HOME": "/data"}))
    assert str(history.path({})).endswith("/.local/share/penstock/bench.jsonl")


def test_an_entry_is_plain_json(tmp_path):
    assert json.loads(json.dumps(history.entry(outcome(10)))) == history.entry(outcome(10))


def test_a_result_is_held_against_the_last_ten_only(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(rate) for rate in [9000] * 20 + [1000] * 10 + [1000]], where)

    assert 0 == pytest.approx(only_trend(where).change)


def test_what_came_out_of_order_is_not_kept(tmp_path):
    where = tmp_path / "bench.jsonl"
    history.append([outcome(1000, disordered=1)], where)

    assert [] == history.read(where)
