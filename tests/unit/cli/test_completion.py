"""Completion and manual pages: they have every command, verb and option."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.cli.commands import COMMANDS, path_of, verbs_of
from penstock.cli.completion import SHELLS
from penstock.cli.main import main
from penstock.cli.manpages import pages


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_verb_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["completion", shell])

    script = capsys.readouterr().out
    for name in COMMANDS:
        for verb in verbs_of(name):
            assert f"'{path_of(name, verb)}'" in script.replace("\\'", "'")
            assert all(option.lstrip("-") in script for option in verb.option_names)


def complete(line: str, folder: Path) -> list[str]:
    """Return what bash offers for the last word of a line."""
    words = line.split(" ")
    script = "\n".join(
        [
            SHELLS["bash"](),
            f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}",
            "_penstock; printf '%s\\n' \"${COMPREPLY[@]}\"",
        ]
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_verbs_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()

    assert complete("penstock str", tmp_path) == ["stream"]
    assert complete("penstock stream ba", tmp_path) == ["backup"]
    assert complete("penstock stream backup ORDERS --res", tmp_path) == ["--resume"]
    assert complete("penstock --json stream purge X --ke", tmp_path) == ["--keep"]
    assert complete("penstock pub a --sl", tmp_path) == ["--sleep"]
    assert complete("penstock object put FILES a", tmp_path) == ["a-file"]
    assert complete("penstock completion z", tmp_path) == ["zsh"]


def test_there_is_a_page_for_each_command_with_every_option(tmp_path: Path) -> None:
    assert 0 == main(["man", str(tmp_path)])

    assert {path.stem for path in tmp_path.iterdir()} == {
        "penstock",
        *(f"penstock-{name}" for name in COMMANDS),
    }
    for name in COMMANDS:
        page = (tmp_path / f"penstock-{name}.1").read_text().replace("\\-", "-")
        for verb in verbs_of(name):
            assert all(
                option.names[-1].lstrip("-") in page for option in verb.options if option.doc
            )


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff here")
def test_roff_reads_the_pages() -> None:
    for page in pages().values():
        command = ["groff", "-man", "-Tutf8", "-ww"]
        done = subprocess.run(command, input=page, capture_output=True, text=True, check=True)
        assert done.stderr == ""
    shown = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-c"],
        input=pages()["penstock-stream"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "--max-msgs-per-subject" in re.sub(".\x08", "", shown)
