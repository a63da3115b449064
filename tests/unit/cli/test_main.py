"""The `penstock` command itself."""

import subprocess
import sys

import pytest

from penstock.cli.commands import COMMANDS
from penstock.cli.main import main
from penstock.protocol.version import VERSION


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments, capsys):
    assert 0 == main(arguments)

    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["version"], ["-v"], ["--version"]])
def test_the_version_is_printed(arguments, capsys):
    assert 0 == main(arguments)

    assert capsys.readouterr().out == f"penstock {VERSION}\n"


def test_an_unknown_command_names_the_nearest_one(capsys):
    assert 2 == main(["srve"])

    assert capsys.readouterr().err == (
        "penstock: unknown command `srve`\nhint: did you mean `serve`?\n"
    )
    assert 2 == main(["--colour"])
    assert capsys.readouterr().err.startswith("penstock: unknown option `--colour`\n")


def test_under_the_name_of_nats_server_the_command_line_is_its_own(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/usr/bin/nats-server", "-v"])

    assert 0 == main()

    assert capsys.readouterr().out.startswith("penstock: v")


def test_a_page_of_the_reference_is_printed(capsys):
    assert 0 == main(["reference", "configuration"])
    assert capsys.readouterr().out.startswith("# Configuration\n")

    assert 0 == main(["reference", "--help"])
    assert 2 == main(["reference", "nothing"])
    assert "`nothing` is unknown\nhint: one of configuration, " in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error_of_ours():
    command = [sys.executable, "-m", "penstock", "reference", "commands"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        complaint = process.stderr.read()

    assert (1, b"") == (process.returncode, complaint)
