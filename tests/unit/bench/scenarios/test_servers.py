"""Servers of a bench: what can be named, and what their logs tell."""

import pytest

from penstock.bench.load.processes import share_out
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.servers import (
    PROGRAMS,
    Program,
    Remote,
    ServerFailed,
    find_command,
    version_in,
)

PENSTOCK_LOG = """\
[1] 2026/01/01 00:00:00.000000 [INF] Starting penstock
[1] 2026/01/01 00:00:00.000000 [INF]   Version:  0.1.0 (speaks NATS 2.10.0)
[1] 2026/01/01 00:00:00.000000 [INF]   Hot path: compiled
"""
NATS_LOG = """\
[1] 2026/01/01 00:00:00.000000 [INF] Starting nats-server
[1] 2026/01/01 00:00:00.000000 [INF]   Version:  2.15.1
"""


@pytest.mark.parametrize(
    ("log", "version"),
    [(PENSTOCK_LOG, "penstock 0.1.0, compiled"), (NATS_LOG, "nats-server 2.15.1"), ("", "")],
)
def test_a_server_is_called_what_it_says_it_is(log, version):
    assert version == version_in(log)


def test_passwords_stay_out_of_reports():
    assert "nats://[REDACTED]@host:4222" == Remote("nats://user:secret@host:4222").name


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ServerFailed, match="`no-such-server` was not found"):
        find_command(Program("x", "", ("no-such-server",)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_can_be_called(name):
    assert find_command(PROGRAMS[name])


@pytest.mark.parametrize("processes_max", [1, 2, 3, 8])
def test_every_client_is_in_one_process_and_has_its_own_counter(processes_max):
    plan = Plan(publishers=3, subscribers=7)
    jobs = share_out(plan, "nats://127.0.0.1:4222", processes_max=processes_max)

    for publishing, count in ((True, 3), (False, 7)):
        mine = [job for job in jobs if job.publishing == publishing]
        assert list(range(count)) == sorted(index for job in mine for index in job.indexes)
        assert len(mine) <= processes_max
    assert list(range(10)) == sorted(slot for job in jobs for slot in job.slots)
