"""Comparisons: the suite, the table of ratios, and the page."""

import re
from html.parser import HTMLParser

import pytest

from penstock.bench.report import charts, page
from penstock.bench.report.histogram import Histogram
from penstock.bench.report.result import Outcome, Sample
from penstock.bench.scenarios import compare
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.rounds import median_round
from penstock.errors import ConfigError

SERVERS = ("penstock", "nats")


def outcome(shape, server, rate, **fields):
    histogram = Histogram()
    for percent in range(1, 101):
        histogram.record(round(1e9 / rate * percent))
    sample = Sample(1000, shape.plan.size_bytes, 1, 1 + round(1000 / rate * 1e9))
    defaults = {
        "version": f"{server} 1.0",
        "publishers": [sample],
        "latency_ns": histogram,
        "expected": 1000,
        "received": 1000,
        "resident_bytes": 32 << 20,
    }
    return Outcome(plan=shape.plan, server=server, **{**defaults, **fields})


@pytest.fixture
def results():
    """Every shape on both servers, the first twice as fast."""
    found = []
    for shape in compare.suite(Plan()):
        rounds = (
            {}
            if shape.note
            else {
                "penstock": [outcome(shape, "penstock", rate) for rate in (1900, 2000, 2100)],
                "nats": [outcome(shape, "nats", rate) for rate in (900, 1000, 1100)],
            }
        )
        found.append(compare.Result(shape, rounds))
    return found


def row(text, label):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {label} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rates_are_divided_by_those_of_the_others(results):
    text = compare.render(results, SERVERS)

    assert ["1 x 10 x 128 B", "2,000 /s", "1,000 /s", "2.00"] == row(text, "1 x 10 x 128 B")


def test_times_are_the_shorter_the_better(results):
    text = compare.render(results, SERVERS)

    assert "0.50" == row(text, "request/reply 128 B: p99")[-1]


def test_a_failed_run_is_no_figure_and_says_why(results):
    result = results[1]
    result.rounds["nats"][0] = outcome(result.shape, "nats", 1000, received=900)

    text = compare.render(results, SERVERS)

    assert ["1 x 10 x 128 B", "2,000 /s", "FAILED", "-"] == row(text, "1 x 10 x 128 B")
    assert "1 x 10 x 128 B, nats: 100 messages lost, 0 out of order" in text


def test_what_cannot_run_has_a_row_that_says_so():
    shape = compare.Shape("EventBus", Plan(scenario="bus"), (), note="`bus` cannot run: no")

    text = compare.render([compare.Result(shape, {})], SERVERS)

    assert ["EventBus", "-", "-", "-"] == row(text, "EventBus")
    assert "EventBus: `bus` cannot run: no" in text


def test_the_round_in_the_middle_counts(results):
    assert 2000 == pytest.approx(median_round(results[0].rounds["penstock"]).rate)


def test_a_round_cut_short_counts_only_if_there_is_no_other(results):
    result = results[0]
    cut = outcome(result.shape, "penstock", 5, interrupted=True)

    assert not median_round([*result.rounds["penstock"], cut]).interrupted
    assert median_round([cut]).interrupted


def test_shapes_are_chosen_by_their_names():
    assert ["KV put 128 B", "KV get 128 B"] == [
        shape.name for shape in compare.suite(Plan(), only="kv")
    ]
    with pytest.raises(ConfigError, match="no shape"):
        compare.suite(Plan(), only="nothing")


def test_a_quick_suite_has_the_same_shapes_with_fewer_messages():
    full, quick = compare.suite(Plan()), compare.suite(Plan(), quick=True)

    assert [shape.name for shape in full] == [shape.name for shape in quick]
    assert all(
        one.plan.messages > other.plan.messages for one, other in zip(full, quick, strict=True)
    )


class Outline(HTMLParser):
    """Collects what a page is made of, and holds every tag to be closed."""

    VOID = ("meta", "br", "rect", "path", "circle")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert tag == self.open.pop()


def test_the_page_stands_alone(results):
    text = page.render(results, SERVERS, rounds=3)
    outline = Outline(text)

    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert not {"src", "href", "onload"} & set(outline.attributes)
    assert not re.search(r"https?://|url\(|@import", text)


def test_the_page_has_every_chart_in_light_and_dark(results):
    text = page.render(results, SERVERS, rounds=3)

    assert 6 == Outline(text).tags.count("svg")
    assert "prefers-color-scheme: dark" in text
    assert '<strong class="good">2.0&times;</strong><span>throughput</span>' in text
    assert '<td class="good">2.00</td>' in text


def test_a_page_of_nothing_is_still_a_page():
    shapes = compare.suite(Plan())
    text = page.render([compare.Result(shape, {}) for shape in shapes], SERVERS, rounds=1)

    assert "not measured" in text
    Outline(text)


def test_names_cannot_break_out_of_the_page(results):
    server = "nats://<script>"
    for result in results:
        result.rounds = {server: result.rounds.get("penstock", [])} if result.rounds else {}

    assert "<script" not in page.render(results, [server], rounds=1)


@pytest.mark.parametrize(("value", "expected"), [(0, 1), (0.9, 1), (1, 1), (13, 16), (3.3e6, 4e6)])
def test_axes_end_at_round_numbers(value, expected):
    assert expected == pytest.approx(charts.nice_ceiling(value))


def test_ticks_of_decades_enclose_the_range():
    assert [1, 2, 5, 10] == charts.decade_ticks(0.1, 0.95)
    assert [1, 10, 100, 1000, 10_000] == charts.decade_ticks(0, 4)


def test_percentiles_are_spaced_by_nines():
    assert [0, 1, 2, 3] == pytest.approx([charts.nines(p) for p in (0, 90, 99, 99.9)])


def test_a_curve_ends_with_the_slowest_message():
    histogram = Histogram()
    for value in range(1000):
        histogram.record(value)

    assert (3.0, 999) == pytest.approx(charts.curve(histogram)[-1])


def test_ratios_have_a_geometric_mean():
    one, other = compare.suite(Plan(), only="10 x 1")[:2]
    found = [
        compare.Result(
            shape,
            {
                "penstock": [outcome(shape, "penstock", rate)],
                "nats": [outcome(shape, "nats", 1000)],
            },
        )
        for shape, rate in ((one, 4000), (other, 250))
    ]

    assert '<strong class="even">1.00&times;</strong><span>throughput' in page.render(
        found, SERVERS, rounds=1
    )
