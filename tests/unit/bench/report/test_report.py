"""The report has nats-bench's shape to the letter."""

import csv
import io

import pytest

from penstock.bench.report import report
from penstock.bench.report.histogram import Histogram
from penstock.bench.report.result import Outcome, Sample
from penstock.bench.scenarios.plan import Plan

SECOND_NS = 1_000_000_000


def sample(messages, seconds, *, start=0.0, size=1000):
    begin = 1 + round(start * SECOND_NS)
    return Sample(messages, size, begin, begin + round(seconds * SECOND_NS))


def outcome(**fields):
    defaults = {
        "plan": Plan(publishers=2, subscribers=2, messages=20_000, size_bytes=1000),
        "server": "penstock",
        "version": "penstock 0.1.0, compiled",
        "publishers": [sample(10_000, 10.0), sample(10_000, 8.0)],
        "subscribers": [sample(20_000, 10.0), sample(20_000, 9.5, start=0.5)],
        "expected": 40_000,
        "received": 40_000,
    }
    return Outcome(**{**defaults, **fields})


GOLDEN = """\
Starting benchmark [msgs=20000, msgsize=1000, pubs=2, subs=2]
NATS Pub/Sub stats: 6,000 msgs/sec ~ 5.72 MB/sec
 Pub stats: 2,000 msgs/sec ~ 1.91 MB/sec
  [1] 1,000 msgs/sec ~ 976.56 KB/sec (10000 msgs)
  [2] 1,250 msgs/sec ~ 1.19 MB/sec (10000 msgs)
  min 1,000 | avg 1,125 | max 1,250 | stddev 125 msgs
 Sub stats: 4,000 msgs/sec ~ 3.81 MB/sec
  [1] 2,000 msgs/sec ~ 1.91 MB/sec (20000 msgs)
  [2] 2,105 msgs/sec ~ 2.01 MB/sec (20000 msgs)
  min 2,000 | avg 2,052 | max 2,105 | stddev 52 msgs"""


def test_the_report_has_the_shape_of_nats_bench():
    one = outcome()

    assert GOLDEN == f"{report.starting_line(one.plan)}\n{report.stats(one)}"


def test_figures_of_the_seed_report_come_out_as_they_are_there():
    # 10 x 100 x 1000 B: 988,911 msgs/sec are 943.10 MB/sec; 985 are 962.69 KB/sec or thereabouts.
    assert "943.10 MB" == report.human_bytes(988_911 * 1000)
    assert "9.38 MB" == report.human_bytes(9_832 * 1000)
    assert "961.91 KB" == report.human_bytes(985 * 1000)


def test_a_single_client_of_a_side_is_not_listed():
    one = outcome(
        plan=Plan(size_bytes=1000, messages=10_000),
        publishers=[sample(10_000, 1.0)],
        subscribers=[sample(10_000, 2.0)],
    )

    assert (
        "NATS Pub/Sub stats: 10,000 msgs/sec ~ 9.54 MB/sec\n"
        " Pub stats: 10,000 msgs/sec ~ 9.54 MB/sec\n"
        " Sub stats: 5,000 msgs/sec ~ 4.77 MB/sec"
    ) == report.stats(one)


def test_one_side_alone_is_not_indented():
    one = outcome(subscribers=[])

    assert report.stats(one).startswith("Pub stats: 2,000 msgs/sec ~ 1.91 MB/sec\n [1] 1,000 ")


def test_a_run_without_messages_says_so():
    assert "Nothing was measured." == report.stats(outcome(publishers=[], subscribers=[]))


def test_sides_are_called_what_they_are():
    one = outcome(plan=Plan(scenario="request", messages=20_000, size_bytes=1000))

    assert "NATS Request/Reply stats: " in report.stats(one)
    assert "\n Request stats: " in report.stats(one)
    assert "\n Reply stats: " in report.stats(one)


def test_a_sound_run_says_that_nothing_was_lost():
    assert report.findings(outcome()).startswith(
        "Delivery: 40,000 of 40,000, 0 lost, 0 out of order\n"
    )


def test_loss_disorder_and_errors_are_named():
    text = report.findings(
        outcome(received=39_000, disordered=3, foreign=2, errors=["connection lost"])
    )

    assert "39,000 of 40,000, 1,000 lost, 3 out of order, 2 from elsewhere" in text
    assert "FAILED: connection lost" in text


def test_latency_is_told_by_percentile():
    histogram = Histogram()
    histogram.record(100_000, 999)
    histogram.record(5_000_000, 1)

    text = report.findings(outcome(latency_ns=histogram, resident_bytes=21 << 20))

    assert "Latency: p50 100 µs | p90 100 µs | p99 100 µs | p99.9 100 µs" in text
    assert "max 5 ms (1 message in 32, queueing included)" in text
    assert "Server: penstock 0.1.0, compiled, 21.00 MB resident" in text


def test_small_payloads_are_said_to_be_unchecked():
    one = outcome(plan=Plan(publishers=2, subscribers=2, messages=20_000, size_bytes=8))

    assert "order not checked" in report.findings(one)


def test_events_are_checked_whatever_their_size():
    plan = Plan(scenario="bus", publishers=2, subscribers=2, messages=20_000, size_bytes=8)

    assert "0 out of order" in report.findings(outcome(plan=plan))


def test_an_interrupted_run_says_so_and_speaks_of_no_loss():
    text = report.findings(outcome(received=10, interrupted=True))

    assert "Delivery: 10 of 40,000\n" in text
    assert "Interrupted" in text
    assert "lost" not in text


def test_csv_has_a_row_for_every_client():
    rows = list(csv.reader(io.StringIO(report.as_csv([outcome(), outcome()]))))

    assert ["#RunID", "ClientID", "MsgCount", "MsgBytes", "MsgsPerSec"] == rows[0][:5]
    assert 1 + 2 * 4 == len(rows)
    assert ["run-1", "P0", "10000", "10000000", "1000"] == rows[3][:5]
    assert ["penstock", "pubsub"] == rows[3][-2:]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.00 B"), (1023, "1023.00 B"), (1024, "1.00 KB"), (1 << 40, "1.00 TB")]
)
def test_bytes_have_a_unit_that_suits_them(count, text):
    assert text == report.human_bytes(count)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.5 µs"), (2_340_000, "2.34 ms"), (3e9, "3 s")],
)
def test_times_have_a_unit_that_suits_them(duration_ns, text):
    assert text == report.human_time(duration_ns)


def test_a_latency_says_how_many_messages_it_is_of():
    some, every = Histogram(), Histogram()
    some.record(1000, 1250)
    every.record(1000, 40_000)

    assert "(1 message in 32, queueing included)" in report.findings(outcome(latency_ns=some))
    assert "(queueing included)" in report.findings(outcome(latency_ns=every))
