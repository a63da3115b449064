"""The log: its lines, and its files."""

import logging
import os
import re

import pytest

from penstock.cli.serve import log
from penstock.config.server import ProcessConfig

logger = logging.getLogger("penstock.test")


@pytest.fixture
def configure():
    """Configure the log as a server process does; put everything back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    handlers, level = root.handlers[:], ours.level
    root.handlers[:] = []
    yield lambda **settings: log.configure(ProcessConfig(**settings))
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    ours.setLevel(level)


def test_a_line_is_one_of_nats_server(configure, capsys):
    configure()

    logger.info("text %d", 1)

    line = capsys.readouterr().err
    pattern = r"\[(\d+)\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[INF\] text 1\n"
    assert str(os.getpid()) == re.fullmatch(pattern, line)[1]


def test_the_time_can_be_left_out(configure, capsys):
    configure(logtime=False)

    logger.warning("text")

    assert f"[{os.getpid()}] [WRN] text\n" == capsys.readouterr().err


def test_the_time_can_be_utc():
    record = logging.makeLogRecord({"created": 0.5, "levelno": logging.ERROR, "msg": "x"})

    line = log.LineFormatter(logtime=True, utc=True).format(record)

    assert f"[{os.getpid()}] 1970/01/01 00:00:00.500000 [ERR] x" == line


def test_a_traceback_follows_its_line(configure, capsys):
    configure(logtime=False)

    try:
        raise ValueError("boom")
    except ValueError:
        logger.critical("text", exc_info=True)

    lines = capsys.readouterr().err.splitlines()
    assert f"[{os.getpid()}] [FTL] text" == lines[0]
    assert "ValueError: boom" == lines[-1]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({}, ["INF"]),
        ({"debug": True}, ["INF", "DBG"]),
        ({"trace": True}, ["INF", "TRC"]),
        ({"debug": True, "trace": True}, ["INF", "DBG", "TRC"]),
    ],
)
def test_debug_and_trace_are_switched_on_apart(settings, labels, configure, capsys):
    configure(**settings)

    logger.info("text")
    logger.debug("text")
    logger.log(log.TRACE, "text")

    assert labels == re.findall(r"\[([A-Z]{3})\]", capsys.readouterr().err)


def test_a_file_is_appended_to(configure, tmp_path):
    path = tmp_path / "log"
    path.write_text("before\n")
    configure(log_file=str(path), logtime=False)

    logger.info("after")

    assert ["before", f"[{os.getpid()}] [INF] after"] == path.read_text().splitlines()


def test_a_file_that_was_moved_away_is_opened_anew(configure, tmp_path):
    path = tmp_path / "log"
    configure(log_file=str(path))
    logger.info("one")
    path.rename(tmp_path / "old")

    assert log.reopen()
    logger.info("two")

    assert "two" in path.read_text()
    assert "one" in (tmp_path / "old").read_text()


def test_standard_error_cannot_be_reopened(configure):
    configure()

    assert not log.reopen()


def test_a_full_file_is_set_aside_and_the_oldest_go(configure, tmp_path):
    configure(log_file=str(tmp_path / "log"), logtime=False, log_size_limit=50, log_max_num=3)

    for number in range(20):
        logger.info("line %02d", number)

    current, *backups = sorted(tmp_path.iterdir())
    assert "log" == current.name
    assert 2 == len(backups)
    kept = "".join(path.read_text() for path in (*backups, current))
    assert [f"line {number:02d}" for number in range(14, 20)] == re.findall(r"line \d\d", kept)[-6:]


def test_trouble_with_the_file_does_not_reach_the_one_who_logs(configure, tmp_path, capsys):
    directory = tmp_path / "logs"
    directory.mkdir()
    configure(log_file=str(directory / "log"), log_size_limit=10)
    (directory / "log").unlink()

    logger.info("more than ten bytes")

    assert "Logging error" in capsys.readouterr().err
