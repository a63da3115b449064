"""The Node.js client of NATS, unchanged, on the real server and on ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import Servers
from tests.servers import Program

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


def test_every_scenario_of_the_node_client_works(
    scenarios: Path, program: Program, servers: Servers
) -> None:
    command = ["node", str(scenarios), servers(program).url]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines) == (SOURCE / "scenarios.js").read_text().count("\n  async ")
