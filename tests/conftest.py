"""Fixtures that tests of several folders share."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from tests.servers import PROGRAMS, Program, ServerProcess

from penstock.bus.testing.kafka import KafkaBroker, classpath
from penstock.cli.reference.compatibility import sections
from penstock.errors import MissingExtra

# A shell's background job ignores Ctrl-C, `nohup` a hang-up, and so would what we start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes, and how many a filter refused by chance, says nothing of the code.
CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]
settings.register_profile("patient", deadline=None, suppress_health_check=CHECKS)
settings.load_profile("patient")

Servers = Callable[..., ServerProcess]
HELD = {test for section in sections() for test in section.tests.values()}
"""The tests that the compatibility page names."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that holds a row of the compatibility page, instead of skipping it."""
    report = yield
    name = item.nodeid.removeprefix("tests/")
    if report.skipped and not HELD.isdisjoint((name, name.partition("[")[0])):
        report.outcome = "failed"
        report.longrepr = f"it holds a row of the compatibility page: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Return a function that starts a server the first time it is asked for, and shares it."""
    with ExitStack() as stack:
        running: dict[tuple[Program, str], ServerProcess] = {}

        def server(program: Program, config: str = "") -> ServerProcess:
            key = (program, config)
            if key not in running:
                running[key] = stack.enter_context(ServerProcess(program, config))
            return running[key]

        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Return a real Kafka broker; skip what needs one where none can be fetched."""
    try:
        classpath()
    except MissingExtra as error:
        pytest.skip(str(error))
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    """Each of the programs in turn: what holds of the real server must hold of ours."""
    return request.param


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Take back how a test had the log written: what it wrote to is closed."""
    loggers = [logging.getLogger(), logging.getLogger("penstock")]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers[:], each.level, each.propagate = handlers, level, propagate
