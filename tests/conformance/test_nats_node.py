"""The Node.js client of NATS, unchanged, on the real server and on ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.conftest import Servers
from tests.servers import HOST, PENSTOCK, Program

SOURCE = Path(__file__).parent / "node"
UNREACHABLE = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH", "ENOTCACHED")


@pytest.fixture(scope="session")
def scenarios(request: pytest.FixtureRequest) -> Path:
    """Return the script, in a folder that has the client installed."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js and npm are not installed here")
    assert request.config.cache is not None
    home = request.config.cache.mkdir("node")
    for name in ("package.json", "scenarios.js"):
        shutil.copy(SOURCE / name, home)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline"]
    installed = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    if any(word in installed.stderr for word in UNREACHABLE):
        pytest.skip("the npm registry cannot be reached from here")
    assert installed.returncode == 0, installed.stderr
    return home / "scenarios.js"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("node"))


@pytest.mark.parametrize("transport", ["nats", "tls", "ws", "wss"])
def test_every_scenario_of_the_node_client_works(
    transport: str, scenarios: Path, authority: Authority, program: Program, servers: Servers
) -> None:
    pair = authority.server()
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
    if transport == "nats":
        run(scenarios, authority, servers(program).url)
    elif transport == "tls":
        url = f"localhost:{servers(program, tls).port}"
        run(scenarios, authority, url, tls={"caFile": str(authority.ca)})
    else:
        config = websocket_config(tls if transport == "wss" else "no_tls: true")
        port = servers(program, config).websocket_port
        run(scenarios, authority, f"{transport}://localhost:{port}")


def test_every_scenario_works_compressed(
    scenarios: Path, authority: Authority, servers: Servers
) -> None:
    """Only on ours: the real server takes no compressed message larger than `max_payload`."""
    config = websocket_config("no_tls: true", "compression: true")
    port = servers(PENSTOCK, config).websocket_port

    run(scenarios, authority, f"ws://localhost:{port}")


def websocket_config(*lines: str) -> str:
    return "\n".join(("websocket {", f"listen: '{HOST}:-1'", *lines, "}"))


def run(scenarios: Path, authority: Authority, url: str, **options: object) -> None:
    """Run the scenarios, and see that each of them went well."""
    done = subprocess.run(
        ["node", str(scenarios), url, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(authority.ca)},
    )

    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines) == (SOURCE / "scenarios.js").read_text().count("\n  async ")
