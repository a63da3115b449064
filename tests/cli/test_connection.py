"""How commands reach a server: TLS, logins, contexts, the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.cli.command import Cli
from tests.conftest import Servers
from tests.servers import NATS_SERVER, PENSTOCK, Program

from penstock.cli.main import main

PASSWORD = "authorization { users: [ { user: ann, password: secret } ] }"


class Realm:
    """A server that wants TLS and a certificate of its clients, and the files for both."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        server, self.client = self.authority.server(), self.authority.client("ann")
        files = {"cert_file": server.cert, "key_file": server.key, "ca_file": self.authority.ca}
        texts = {name: str(path) for name, path in files.items()}
        self.config = "tls " + json.dumps({**texts, "verify": True})
        self.words = (
            *("--tlsca", str(self.authority.ca)),
            *("--tlscert", str(self.client.cert), "--tlskey", str(self.client.key)),
        )


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return Realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture
def secured(
    program: Program, servers: Servers, realm: Realm, capsys: pytest.CaptureFixture[str]
) -> Cli:
    return Cli(servers(program, realm.config).url, capsys)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the contexts of a user who has none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NATS_URL", raising=False)
    return tmp_path / "nats"


def test_the_files_of_tls_are_options(secured: Cli, realm: Realm) -> None:
    assert secured("pub", "a", "x", *realm.words).err == "published 1 B to `a`\n"


def test_an_authority_that_is_not_known_is_told(secured: Cli, realm: Realm) -> None:
    error = secured.fails("pub", "a", "x")

    assert "certificate verify failed" in error
    assert error.endswith("\nhint: name the certificate of its authority with --tlsca\n")


def test_a_certificate_that_is_missing_is_told(secured: Cli, realm: Realm) -> None:
    error = secured.fails("pub", "a", "x", *realm.words[:2])

    assert error.endswith("\nhint: does it want a certificate of ours? --tlscert and --tlskey\n")


def test_a_key_without_its_certificate_is_refused(secured: Cli, realm: Realm) -> None:
    error = secured.fails("pub", "a", "x", *realm.words[:2], *realm.words[4:], code=2)

    assert error == "penstock: `--tlskey` is the key of a certificate\nhint: add --tlscert\n"
    assert "`--tlsca`: cannot read `/nowhere`" in secured.fails(
        *("pub", "a", "x", "--tlsca", "/nowhere"), code=2
    )


def test_the_bus_takes_the_same_files(
    servers: Servers, realm: Realm, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f"{realm.config}\njetstream {{ store_dir: js }}"
    bus = Cli(servers(PENSTOCK, config).url, capsys)

    assert bus("topics", "list", *realm.words).err == "penstock: no topics on any bus here\n"
    assert bus.fails("topics", "list").endswith("authority with --tlsca\n")


@pytest.mark.parametrize("words", [("pub", "a", "x"), ("topics", "list"), ("stream", "ls")])
def test_a_wrong_password_is_no_missing_server(
    words: tuple[str, ...], program: Program, servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = Cli(servers(program, PASSWORD).url, capsys)

    error = locked.fails(*words, "--user", "ann", "--password", "wrong")
    assert error.startswith("penstock: login refused: 127.0.0.1:")
    assert "Authorization Violation" in error
    assert error.endswith(
        "\nhint: log in with --user and --password, --token, --creds, --nkey or --context\n"
    )


def test_a_context_stands_for_a_server_and_a_login(
    program: Program, servers: Servers, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = servers(program, PASSWORD).url
    words = ("--server", url, "--user", "ann", "--password", "secret")

    assert 0 == main(["context", "save", "prod", *words, "--description", "real"])
    assert 0 == main(["pub", "a", "x", "--context", "prod"])
    assert 0 == main(["context", "select", "prod"])
    assert 0 == main(["pub", "a", "x"])
    assert 1 == main(["pub", "a", "x", "--token", "wrong"])
    assert "Authorization Violation" in capsys.readouterr().err
    # Its password is for its own server.
    assert 1 == main(["pub", "a", "x", "--server", url])


def test_the_environment_names_a_context_or_a_server_instead(
    servers: Servers,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = servers(NATS_SERVER, PASSWORD).url
    words = ["--user", "ann", "--password", "secret"]
    main(["context", "save", "here", "--server", url, *words])
    main(["context", "save", "nowhere", "--server", "nats://127.0.0.1:1", "--select"])

    monkeypatch.setenv("NATS_CONTEXT", "here")
    assert 0 == main(["pub", "a", "x"])
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:2")
    assert 1 == main(["pub", "a", "x"])
    assert "127.0.0.1:2: connection refused" in capsys.readouterr().err
    assert 0 == main(["pub", "a", "x", "--context", "here"])


def test_contexts_are_listed_shown_and_removed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["context", "save", "prod", "--server", "nats://h:1", "--token", "t0p", "--tlsfirst"])
    main(["context", "save", "dev", "--server", "nats://ann:secret@d:1", "--select"])
    file = home / "context" / "prod.json"
    assert 0o600 == file.stat().st_mode & 0o777
    capsys.readouterr()

    main(["context", "ls"])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split() for row in rows] == [
        ["*", "dev", "nats://[REDACTED]@d:1"],
        ["prod", "nats://h:1"],
    ]
    main(["context", "show", "prod", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"name": "prod", "url": "nats://h:1", "token": "(hidden)", "tls_first": True}
    main(["context", "show", "prod", "--secrets"])
    assert "  token      t0p\n" in capsys.readouterr().out
    main(["context", "save", "prod", "--user", "bob"])
    assert {"url": "nats://h:1", "token": "t0p"}.items() <= json.loads(file.read_text()).items()

    assert 1 == main(["context", "rm", "dev"])
    assert "hint: --force does not ask" in capsys.readouterr().err
    assert 0 == main(["context", "rm", "dev", "--force"])
    assert not (home / "context.txt").exists()
    assert 2 == main(["context", "select", "prd"])
    assert "no context `prd`\nhint: did you mean `prod`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["save", "new"], "a new context needs a server\nhint: add --server URL"),
        (["save", "../x", "--server", "nats://h"], "`../x` is not a valid name of a context"),
        (["select"], "which context?\nhint: its name, or --none"),
        (["show"], "no context is selected\nhint: penstock context show NAME"),
        (["show", "x"], "no context `x`\nhint: penstock context save x --server URL"),
    ],
)
def test_what_is_no_context_is_refused(
    words: list[str], complaint: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["context", *words])

    assert complaint in capsys.readouterr().err


def test_a_context_that_only_the_other_command_understands_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "context").mkdir(parents=True)
    (home / "context" / "foreign.json").write_text('{"url": "nats://h", "nsc": "nsc://o/a/u"}')
    (home / "context" / "broken.json").write_text("{")

    assert 2 == main(["pub", "a", "x", "--context", "foreign"])
    assert "context `foreign` has `nsc`, which only the `nats` command" in capsys.readouterr().err
    assert 2 == main(["pub", "a", "x", "--context", "broken"])
    assert "context `broken`: cannot read" in capsys.readouterr().err


def test_the_bus_takes_a_context_too(
    servers: Servers, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = servers(PENSTOCK, f"{PASSWORD}\njetstream {{ store_dir: js }}").url
    main(["context", "save", "prod", "--server", url, "--user", "ann", "--password", "secret"])
    capsys.readouterr()

    assert 0 == main(["topics", "list", "--context", "prod"])
    assert 0 == main(["dlq", "list", "--context", "prod"])
    assert 1 == main(["topics", "list", "--server", url])
    assert "login refused" in capsys.readouterr().err
