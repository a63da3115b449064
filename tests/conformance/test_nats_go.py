"""The Go client of NATS, unchanged, on the real server and on ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conformance.realm import OPEN, SECURE, Realm, cells
from tests.servers import HOST, Program, ServerProcess
from tests.splitting import SplittingProxy

pytestmark = pytest.mark.timeout(900)
"""The first of them fetches and builds the client, which takes its time on a busy machine."""
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
SPLIT = (
    *("TestMessagesArriveInOrder", "TestRequestsAreAnswered", "TestHeadersArriveAsTheyWereSent"),
    *("TestAQueueGroupSharesMessages", "TestAsyncPublishesAreAcknowledged", "TestFetchTakesABatch"),
    *("TestMessagesArePushed", "TestKeysHaveValues", "TestObjectsAreStoredInPieces"),
)
"""Scenarios of each kind of traffic, small and large."""
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
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return Realm(tmp_path_factory.mktemp("realm"))


@pytest.mark.parametrize("transport", OPEN + SECURE)
def test_every_scenario_of_the_go_client_works(
    transport: str, conformance: Path, realm: Realm, program: Program
) -> None:
    config = STORE + realm.server_config("nobody", is_secure=transport in SECURE)
    with ServerProcess(program, config) as server:
        passed = run(conformance, realm, server.url_of(transport))

    assert ALL - passed == {"TestWhoIsUnknownIsRefused"}


def test_every_scenario_works_compressed(conformance: Path, realm: Realm, program: Program) -> None:
    websocket = f"websocket {{ listen: '{HOST}:-1', no_tls: true, compression: true }}\n"
    with ServerProcess(program, STORE + websocket) as server:
        passed = run(conformance, realm, server.url_of("ws"), "-compress")

    assert ALL - passed == {"TestWhoIsUnknownIsRefused"}


@pytest.mark.parametrize("transport", OPEN + SECURE)
def test_a_proxy_may_split_and_join_what_passes(
    transport: str, conformance: Path, realm: Realm, program: Program
) -> None:
    config = STORE + realm.server_config("nobody", is_secure=transport in SECURE)
    with ServerProcess(program, config) as server:
        port = int(server.url_of(transport).rpartition(":")[2])
        with SplittingProxy(port) as proxy:
            chosen = f"-test.run=^({'|'.join(SPLIT)})$"
            passed = run(conformance, realm, f"{transport}://localhost:{proxy.port}", chosen)

    assert passed == set(SPLIT)


@pytest.mark.parametrize(("kind", "is_secure"), cells())
def test_every_kind_of_user_connects_by_every_way(
    kind: str, is_secure: bool, conformance: Path, realm: Realm, program: Program
) -> None:
    flags = [f"-{name}={value}" for name, value in realm.options[kind].items()]
    expected = {"TestWhoIsKnownIsHeard"}
    if kind != "nobody":
        expected.add("TestWhoIsUnknownIsRefused")
        flags.append("-refuses")
    with ServerProcess(program, realm.server_config(kind, is_secure=is_secure)) as server:
        for transport in SECURE if is_secure else OPEN:
            url = server.url_of(transport)
            assert run(conformance, realm, url, "-test.run=^TestWhoIs", *flags) == expected


def run(conformance: Path, realm: Realm, url: str, *flags: str) -> set[str]:
    """Run the scenarios, all at once, and return the names of those that passed."""
    command = [str(conformance), "-test.v", "-test.parallel=32", f"-url={url}"]
    if url.startswith(SECURE):
        command.append(f"-ca={realm.authority.ca}")
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^--- PASS: (\w+)", done.stdout, re.MULTILINE))
