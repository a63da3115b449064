"""Histograms: every percentile to within 1 %, counts exact, and sums of histograms."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.report.histogram import Histogram, bucket, highest

VALUES = st.lists(st.integers(0, 10**12), min_size=1, max_size=200)


def filled(values):
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(st.integers(0, 10**15))
def test_a_value_is_kept_to_within_one_percent(value):
    assert value <= highest(bucket(value)) <= value * 1.01


@given(st.integers(0, 10**9))
def test_buckets_follow_the_order_of_values(value):
    assert bucket(value) <= bucket(value + 1) <= bucket(value) + 1


@given(VALUES, st.sampled_from([0.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_that_of_the_sorted_values(values, percent):
    rank = max(-(-len(values) * round(percent * 1000) // 100_000), 1)
    exact = sorted(values)[rank - 1]

    assert exact <= filled(values).percentile(percent) <= exact * 1.01


@given(VALUES, VALUES)
def test_merging_is_recording_both(some, others):
    merged = filled(some)
    merged.merge(filled(others))

    assert vars(filled(some + others)) == vars(merged)


@given(VALUES)
def test_count_extremes_and_mean_are_exact(values):
    histogram = filled(values)

    assert (len(values), min(values), max(values)) == (
        histogram.count,
        histogram.minimum,
        histogram.maximum,
    )
    assert sum(values) / len(values) == histogram.mean


@given(VALUES)
def test_json_holds_all_of_it(values):
    histogram = filled(values)

    again = Histogram.from_json(json.loads(json.dumps(histogram.as_json())))

    assert vars(histogram) == vars(again)


def test_a_value_can_be_counted_many_times_at_once():
    histogram = Histogram()
    histogram.record(7, 1000)
    histogram.record(1_000_000)

    assert [7, 7, 1_000_000] == histogram.percentiles([50, 99.9, 100])


def test_time_that_seems_to_run_backwards_counts_as_none():
    assert 0 == filled([-5]).maximum


@pytest.mark.parametrize("percent", [0, 50, 100])
def test_an_empty_histogram_says_nothing(percent):
    empty = Histogram()
    empty.merge(Histogram())

    assert (0, 0.0) == (empty.percentile(percent), empty.mean)
