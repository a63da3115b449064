"""The public calls are typed: two checkers find every mistake of a user, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from penstock.bus.config.bus import BusConfig, BusSettings, TopicOptions, TopicSettings
from penstock.client.jetstream.consume import ConsumeOptions, ConsumeSettings
from penstock.client.jetstream.jetstream import JetStreamOptions, JetStreamSettings
from penstock.client.jetstream.settings import ConsumerSettings, StreamSettings
from penstock.client.options import ClientOptions, ClientSettings
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import ServerConfig, ServerSettings
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.stream import StreamConfig

PROGRAM = Path(__file__).with_name("program.py")
PAIRS = [
    (BusConfig, BusSettings),
    (TopicOptions, TopicSettings),
    (ClientOptions, ClientSettings),
    (ConsumeOptions, ConsumeSettings),
    (JetStreamOptions, JetStreamSettings),
    (ServerConfig, ServerSettings),
]
OTHERWISE: dict[tuple[type, str], Any] = {
    (ClientOptions, "servers"): None,  # an argument of its own
    (ServerConfig, "jetstream"): JetStreamConfig | bool | None,  # may be a switch
}


def planted() -> set[int]:
    lines = PROGRAM.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}


def checked(*command: str, program: Path = PROGRAM) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command, str(program)], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def programs_of(page: Path) -> list[str]:
    return re.findall(r"^```py(?:thon)?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


ROOT = Path(__file__).parents[2]
WHOLE = [
    *((f"README {index}", one) for index, one in enumerate(programs_of(ROOT / "README.md"))),
    ("eventbus", programs_of(ROOT / "docs" / "guides" / "eventbus.md")[0]),
    ("running-services", programs_of(ROOT / "docs" / "guides" / "running-services.md")[0]),
]
"""Programs that people copy whole, and start with."""


@pytest.mark.parametrize("program", [one for _, one in WHOLE], ids=[name for name, _ in WHOLE])
def test_mypy_finds_nothing_in_what_people_begin_with(program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)

    assert "" == checked("mypy", "--strict", "--no-error-summary", program=path)


def test_mypy_finds_every_mistake_and_nothing_else(tmp_path: Path) -> None:
    text = checked("mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}")

    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", text)}
    assert found == planted(), text


def test_pyright_finds_every_mistake_and_nothing_else() -> None:
    text = checked("basedpyright", "--level", "error", "--outputjson")

    found = json.loads(text)["generalDiagnostics"]
    assert {each["range"]["start"]["line"] + 1 for each in found} == planted(), text


@pytest.mark.parametrize(("config", "settings"), PAIRS, ids=lambda each: each.__name__)
def test_keywords_are_the_fields(config: type, settings: type) -> None:
    hints = get_type_hints(config)
    wanted = {item.name: hints[item.name] for item in fields(config)}
    for (kind, name), hint in OTHERWISE.items():
        if kind is config:
            wanted[name] = hint

    assert get_type_hints(settings) == {name: hint for name, hint in wanted.items() if hint}


@pytest.mark.parametrize(
    ("config", "settings"), [(StreamConfig, StreamSettings), (ConsumerConfig, ConsumerSettings)]
)
def test_the_client_knows_every_option_of_the_server(config: type, settings: type) -> None:
    options = {item.name for item in fields(config)}

    # The name of a stream is an argument of its own.
    assert set(get_type_hints(settings)) == options - (
        {"name"} if config is StreamConfig else set()
    )
