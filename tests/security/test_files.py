"""Files on disk: secrets for their owner alone, and nothing written through somebody's link."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.contract.credentials import operator_config_and_creds
from tests.servers import PENSTOCK, RawClient, ServerProcess, wait_until

from penstock.config.accounts import Resolver
from penstock.files import PRIVATE, replace_file
from penstock.net.system.accountfiles import AccountFiles

SOURCE = Path(__file__).parent.parent.parent / "src" / "penstock"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def generous_umask() -> None:
    """Have everything be readable and writable by all that does not see to it itself."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_file_is_replaced_as_a_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, "old")
    replace_file(path, "new", durable=True)

    assert "new" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.usefixtures("generous_umask")
def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "private", "s3cret", mode=PRIVATE)
    replace_file(tmp_path / "public", "4222")

    assert (0o600, 0o666) == (mode(tmp_path / "private"), mode(tmp_path / "public"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")

    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["server.pid", "server.pid.partial", "server.pid.tmp"])
def test_a_link_laid_where_a_file_goes_is_not_followed(tmp_path: Path, name: str) -> None:
    """A pid file in `/tmp` has neighbours that anybody may have put there."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    public = tmp_path / "public"
    public.mkdir()
    (public / name).symlink_to(victim)
    with ServerProcess(PENSTOCK, "", "--pid", str(public / "server.pid")) as server:
        # It is written once there is something to reach.
        path = public / "server.pid"
        wait_until(lambda: path.is_file() and not path.is_symlink())
        assert str(server.process.pid) == path.read_text()

    assert "precious" == victim.read_text()


@pytest.mark.usefixtures("generous_umask")
def test_the_store_is_its_owners_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(PENSTOCK, f'jetstream {{ store_dir: "{store}" }}') as server:
        with RawClient(server.port) as client:
            client.connect()
            config = b'{"name": "S", "subjects": ["s"]}'
            client.send(b"SUB i 1\r\nPUB $JS.API.STREAM.CREATE.S i %d\r\n" % len(config))
            client.send(config + b"\r\n")
            assert client.line().startswith(b"MSG i 1 ")
            client.send(b"PUB s i 5\r\nhello\r\n")
            while b'"seq":1' not in client.line():
                pass
        paths = [store, *store.rglob("*")]

    assert {0o700} == {mode(path) for path in paths if path.is_dir()}
    assert {0o600} == {mode(path) for path in paths if path.is_file()}


@pytest.mark.usefixtures("generous_umask")
def test_tokens_of_accounts_are_kept_for_the_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "jwt"
    config, _ = operator_config_and_creds(tmp_path)
    [(key, token)] = re.findall(r"(A[A-Z2-7]{55}): *\"?([\w.-]+)", config)[:1]
    AccountFiles(Resolver(directory=str(directory))).save(key, token)

    assert 0o700 == mode(directory)
    assert {0o600} == {mode(path) for path in directory.iterdir()}


@pytest.mark.usefixtures("generous_umask")
def test_the_token_of_a_spark_driver_is_left_for_its_user_alone() -> None:
    pytest.importorskip("pyspark", reason="needs the extra `spark`")
    from penstock.spark.files import leave_address

    parameters = SimpleNamespace(port=5, auth_token="s3cret")
    gateway = SimpleNamespace(gateway_parameters=parameters)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
    path = Path(leave_address(session))  # type: ignore[arg-type]

    assert "s3cret" in path.read_text()
    assert 0o700 == mode(path.parent)


@pytest.mark.usefixtures("generous_umask")
def test_a_log_file_is_no_business_of_others(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "-p", "-1", "-a", "127.0.0.1", "-l", str(path)]
    )
    try:
        while not path.exists():
            assert process.poll() is None
        assert 0 == mode(path) & 0o027
    finally:
        process.terminate()
        process.wait()


def test_temporary_files_have_names_that_nobody_can_guess() -> None:
    """`tempfile` and `replace_file` see to that; no path in `/tmp` is written down."""
    found = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in SOURCE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r'["\']/(var/)?tmp/|tempfile\.mktemp\(|gettempdir\(', line)
    ]

    assert [] == found
