"""The Go client of NATS, unchanged, on the real server and on ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.conformance.test_transports import Realm
from tests.servers import HOST, Program, ServerProcess

SOURCE = Path(__file__).parent / "go"
ALL = {
    name
    for path in SOURCE.glob("*_test.go")
    for name in re.findall(r"^func (Test\w+)\(", path.read_text(), re.MULTILINE)
}
UNREACHABLE = (
    *("dial tcp", "no such host", "timeout", "module lookup disabled", "unable to access"),
    *("Forbidden", "Bad Gateway", "Service Unavailable"),
)
OPEN, SECURE = ("nats", "ws"), ("tls", "wss")
STORE = "jetstream { store_dir: store }\n"


@pytest.fixture(scope="session")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the scenarios of the client, compiled."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed here")
    fetched = go("mod", "download")
    if "requires go >=" in fetched.stderr:
        pytest.skip("the Go that is installed here is too old for the client")
    if any(word in fetched.stderr for word in UNREACHABLE):
        pytest.skip("the Go module proxy cannot be reached from here")
    assert fetched.returncode == 0, fetched.stderr
    program = tmp_path_factory.mktemp("go") / "conformance.test"
    built = go("test", "-c", "-o", str(program))
    assert built.returncode == 0, built.stderr
    return program


def go(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments], cwd=SOURCE, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return Realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="module")
def listeners(authority: Authority) -> dict[str, str]:
    """How a server is told to listen, openly or with TLS, on TCP and on WebSocket."""
    pair = authority.server()
    tls = json.dumps({"cert_file": str(pair.cert), "key_file": str(pair.key)})
    return {
        "open": f"websocket {{ listen: '{HOST}:-1', no_tls: true }}\n",
        "secure": f"tls {tls}\nwebsocket {{ listen: '{HOST}:-1', tls {tls} }}\n",
    }


@pytest.mark.parametrize("transport", OPEN + SECURE)
def test_every_scenario_of_the_go_client_works(
    transport: str,
    conformance: Path,
    authority: Authority,
    listeners: dict[str, str],
    program: Program,
) -> None:
    security = "secure" if transport in SECURE else "open"
    with ServerProcess(program, STORE + listeners[security]) as server:
        passed = run(conformance, authority, url(server, transport))

    assert ALL - passed == {"TestWhoIsUnknownIsRefused"}


def test_every_scenario_works_compressed(
    conformance: Path, authority: Authority, program: Program
) -> None:
    websocket = f"websocket {{ listen: '{HOST}:-1', no_tls: true, compression: true }}\n"
    with ServerProcess(program, STORE + websocket) as server:
        passed = run(conformance, authority, url(server, "ws"), "-compress")

    assert ALL - passed == {"TestWhoIsUnknownIsRefused"}


@pytest.mark.parametrize("kind", ["token", "user", "users", "nkey", "accounts", "jwt"])
@pytest.mark.parametrize("security", ["open", "secure"])
def test_every_kind_of_user_connects_by_every_way(
    security: str,
    kind: str,
    conformance: Path,
    authority: Authority,
    listeners: dict[str, str],
    realm: Realm,
    program: Program,
) -> None:
    flags = [f"-{name}={value}" for name, value in realm.options[kind].items()]
    with ServerProcess(program, listeners[security] + realm.config[kind]) as server:
        for transport in SECURE if security == "secure" else OPEN:
            passed = run(
                conformance, authority, url(server, transport), "-test.run=^TestWhoIs", *flags
            )
            assert passed == {"TestWhoIsKnownIsHeard", "TestWhoIsUnknownIsRefused"}


def url(server: ServerProcess, transport: str) -> str:
    port = server.websocket_port if transport.startswith("ws") else server.port
    return f"{transport}://localhost:{port}"


def run(conformance: Path, authority: Authority, url: str, *flags: str) -> set[str]:
    """Run the scenarios, all at once, and return the names of those that passed."""
    command = [str(conformance), "-test.v", "-test.parallel=32", f"-url={url}"]
    if url.startswith(SECURE):
        command.append(f"-ca={authority.ca}")
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^--- PASS: (\w+)", done.stdout, re.MULTILINE))
