"""Servers of a bench: what can be named."""

import pytest

from penstock.bench.load.processes import share_out
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.servers import PROGRAMS, RemoteServer
from penstock.net.process import command_of


def test_passwords_stay_out_of_reports():
    assert "nats://[REDACTED]@host:4222" == RemoteServer("nats://user:secret@host:4222").name


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_can_be_called(name):
    assert command_of(PROGRAMS[name])


@pytest.mark.parametrize("processes_max", [1, 2, 3, 8])
def test_every_client_is_in_one_process_and_has_its_own_counter(processes_max):
    plan = Plan(publishers=3, subscribers=7)
    jobs = share_out(plan, "nats://127.0.0.1:4222", processes_max=processes_max)

    for publishing, count in ((True, 3), (False, 7)):
        mine = [job for job in jobs if job.publishing == publishing]
        assert list(range(count)) == sorted(index for job in mine for index in job.indexes)
        assert len(mine) <= processes_max
    assert list(range(10)) == sorted(slot for job in jobs for slot in job.slots)
