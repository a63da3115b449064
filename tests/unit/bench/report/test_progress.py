"""The progress bar: only for terminals, without colour if that is asked for."""

import io

import pytest

from penstock.bench.report.progress import BLUE, Progress, bar
from penstock.bench.scenarios.plan import Plan


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_no_terminal_stays_clean():
    out = io.StringIO()
    progress = Progress(out)
    progress.show(Plan(), "penstock", 5, 10)
    progress.clear()

    assert "" == out.getvalue()


def test_a_terminal_sees_how_far_it_is(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    progress = Progress(out)
    progress.show(Plan(), "penstock", 5, 10)

    assert " 50% " in out.getvalue()
    assert "msgs/s" in out.getvalue()
    assert BLUE in out.getvalue()


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    Progress(out).show(Plan(), "penstock", 5, 10)

    assert BLUE not in out.getvalue()


def test_a_narrow_terminal_is_not_overrun(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    Progress(out).show(Plan(), "nats://a-host-with-a-very-long-name.example:4222", 5, 10)

    assert len(out.getvalue().rpartition("\x1b[2K")[2]) < 70


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, "░░░░"), (0.5, "██░░"), (0.625, "██▌░"), (1, "████"), (2, "████")]
)
def test_a_bar_is_filled_to_the_eighth_of_a_cell(share, drawn):
    assert drawn == bar(share, 4)
