"""`penstock config explain`: every setting in effect, and where it came from."""

import json

import pytest

from penstock.cli.main import main


@pytest.fixture
def explain(tmp_path, capsys, monkeypatch):
    """Run the command on the text of a file; return what it says as JSON."""

    def run(text, *arguments):
        path = tmp_path / "x.conf"
        path.write_text(text)
        assert main(["config", "explain", "-c", str(path), "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out.replace(f"{tmp_path}/", ""))

    return run


def test_every_setting_has_a_value_and_a_source(explain, monkeypatch):
    monkeypatch.setenv("PENSTOCK__MAX_PAYLOAD", "2MB")

    settings = explain("port: 1\nwebsocket { port: 2, no_tls: true }", "-m", "3")["settings"]

    assert settings["port"] == {"value": "1", "from": "x.conf:1:1"}
    assert settings["http_port"] == {"value": "3", "from": "flag -m"}
    assert settings["max_payload"] == {
        "value": "2MB",
        "from": "environment variable PENSTOCK__MAX_PAYLOAD",
    }
    assert settings["ping_interval"] == {"value": "2m", "from": "default"}
    assert settings["websocket.port"]["value"] == "2"


def test_what_is_off_has_no_settings(explain):
    settings = explain("port: 1")["settings"]

    assert not [name for name in settings if name.startswith(("websocket", "tls", "jetstream"))]


def test_secrets_are_not_told(explain):
    token = explain("authorization { token: secret }")
    users = explain("authorization { users = [ {user: ann, password: secret} ] }")

    assert "secret" not in json.dumps([token, users])
    assert users["settings"]["authorization.users"]["value"] == "1: ann"


def test_warnings_are_part_of_it(explain):
    assert "`leafnodes` has no effect" in explain("leafnodes { port: 1 }")["warnings"][0]


def test_the_table_may_leave_out_the_defaults(tmp_path, capsys):
    path = tmp_path / "x.conf"
    path.write_text("port: 4333")

    assert main(["config", "explain", "-c", str(path), "--set"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "SETTING  VALUE  FROM",
        f"port     4333   {path}:1:1",
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 0), (["--help"], 0), (["what"], 2), (["explain", "-x"], 2), (["explain", "x"], 2)],
)
def test_a_command_line_that_makes_no_sense_is_told_so(arguments, code, capsys):
    assert main(["config", *arguments]) == code


def test_an_invalid_file_is_told_of(tmp_path, capsys):
    path = tmp_path / "x.conf"
    path.write_text("prot: 1")

    assert main(["config", "explain", "-c", str(path)]) == 1
    assert "did you mean `port`?" in capsys.readouterr().err


def test_options_may_come_before_the_verb(capsys):
    assert 0 == main(["--json", "config", "explain"])
    first = capsys.readouterr().out
    assert 0 == main(["config", "--json", "explain"])

    assert first == capsys.readouterr().out
    assert "settings" in json.loads(first)
