"""The Node.js client of NATS, unchanged, on the real server and on ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.realm import OPEN, SECURE, Realm, cells
from tests.conftest import Servers
from tests.servers import HOST, PENSTOCK, Program, ServerProcess

pytestmark = pytest.mark.timeout(900)
"""The first of them fetches and builds the client, which takes its time on a busy machine."""

SOURCE = Path(__file__).parent / "node"
UNREACHABLE = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH", "ENOTCACHED")


@pytest.fixture(scope="session")
def scenarios(request: pytest.FixtureRequest) -> Path:
    """Return the script, in a folder that has the client installed."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js and npm are not installed here")
    assert request.config.cache is not None
    home = request.config.cache.mkdir("node")
    for name in ("package.json", "scenarios.js", "who.js"):
        shutil.copy(SOURCE / name, home)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline"]
    installed = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    if any(word in installed.stderr for word in UNREACHABLE):
        pytest.skip("the npm registry cannot be reached from here")
    assert installed.returncode == 0, installed.stderr
    return home / "scenarios.js"


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return Realm(tmp_path_factory.mktemp("node"))


@pytest.mark.parametrize("transport", OPEN + SECURE)
def test_every_scenario_of_the_node_client_works(
    transport: str, scenarios: Path, realm: Realm, program: Program, servers: Servers
) -> None:
    server = servers(program, realm.server_config("nobody", is_secure=transport in SECURE))
    options = {"tls": {"caFile": str(realm.authority.ca)}} if transport == "tls" else {}

    assert_all_work(scenarios, realm, server.url_of(transport), options)


def test_every_scenario_works_compressed(scenarios: Path, realm: Realm, servers: Servers) -> None:
    """Only on ours: the real server takes no compressed message larger than `max_payload`."""
    config = f"websocket {{ listen: '{HOST}:-1', no_tls: true, compression: true }}"

    assert_all_work(scenarios, realm, servers(PENSTOCK, config).url_of("ws"), {})


@pytest.mark.parametrize(("kind", "is_secure"), cells())
def test_every_kind_of_user_connects_by_every_way(
    kind: str, is_secure: bool, scenarios: Path, realm: Realm, program: Program
) -> None:
    options = realm.options[kind] | {"ca": str(realm.authority.ca), "refuses": kind != "nobody"}
    expected = ["heard"] if kind == "nobody" else ["heard", "refused"]
    with ServerProcess(program, realm.server_config(kind, is_secure=is_secure)) as server:
        for transport in SECURE if is_secure else OPEN:
            script = scenarios.with_name("who.js")
            assert run(script, realm, server.url_of(transport), options) == expected


def assert_all_work(scenarios: Path, realm: Realm, url: str, options: dict[str, Any]) -> None:
    """Run the scenarios, and see that each of them went well."""
    lines = run(scenarios, realm, url, options)

    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) == (SOURCE / "scenarios.js").read_text().count("\n  async ")


def run(script: Path, realm: Realm, url: str, options: dict[str, Any]) -> list[str]:
    """Run a script, and return the lines it prints."""
    done = subprocess.run(
        ["node", str(script), url, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(realm.authority.ca)},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()
