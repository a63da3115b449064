"""The configuration language. Trees are compared as plain values, errors as full sentences."""

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.file.language import digest, parse, parse_file, parse_value, plain
from penstock.errors import ConfigError

NATS_SERVER = Path(sys.executable).parent / "nats-server"
HASH = "$2a$11$PWIFAL8RsWyGI3jVZtO9Nu8.6jOxzxfZo7c/W0eLk017hjgUKWrhy"

VALID = {
    "colon": ("port: 4222", {"port": 4222}),
    "equals sign": ("port=4222", {"port": 4222}),
    "space": ("port 4222", {"port": 4222}),
    "value on the next line, without a separator": ("port\n4222", {"port": 4222}),
    "block without a separator": ("tls { a: 1 }", {"tls": {"a": 1}}),
    "block on the next line": ("tls\n{\n a: 1\n}", {"tls": {"a": 1}}),
    "block joined to its key": ("tls{a:1}", {"tls": {"a": 1}}),
    "empty text": ("", {}),
    "only comments": ("# one\n// two\n", {}),
    "comment after a value": ("a: 1 # one\nb: 2 // two\n", {"a": 1, "b": 2}),
    "hash inside a bare string": ("a: b#c", {"a": "b#c"}),
    "slashes inside a bare string": ("a: nats://localhost", {"a": "nats://localhost"}),
    "commas and semicolons": ("a: 1, b: 2; c: 3", {"a": 1, "b": 2, "c": 3}),
    "windows line ends": ("a: 1\r\nb: x\r\n", {"a": 1, "b": "x"}),
    "double quotes": ('a: "b c"', {"a": "b c"}),
    "single quotes know no escapes": (r"a: 'b\nc'", {"a": r"b\nc"}),
    "quoted keys": ("'a b': 1\n\"c:d\": 2", {"a b": 1, "c:d": 2}),
    "escapes": (r'a: "\t\n\r\"\\\x41"', {"a": '\t\n\r"\\A'}),
    "escaped bytes are UTF-8": (r'a: "caf\xc3\xa9"', {"a": "café"}),
    "escapes of JSON": (r'{"a": "\u00e9\/\ud83d\ude00"}', {"a": "é/😀"}),
    "escape in a bare string": (r"a: b\x20c", {"a": "b c"}),
    "escaped number stays a string": (r"a: \x31", {"a": "1"}),
    "booleans": (
        "a: true\nb: Yes\nc: ON\nd: false\ne: no\nf: off",
        {"a": True, "b": True, "c": True, "d": False, "e": False, "f": False},
    ),
    "quoted booleans are strings": ('a: "true"', {"a": "true"}),
    "negative number": ("a: -1", {"a": -1}),
    "fraction": ("a: 2.5", {"a": 2.5}),
    "exponent": ("a: 1e3", {"a": 1000}),
    "address": ("a: 127.0.0.1:4222", {"a": "127.0.0.1:4222"}),
    "address with a free port": ("a: 127.0.0.1:-1", {"a": "127.0.0.1:-1"}),
    "duration": ("a: 100ms", {"a": "100ms"}),
    "date": ("a: 2026-01-02T03:04:05Z", {"a": "2026-01-02T03:04:05Z"}),
    "bare bcrypt hash": (f"a: {HASH}", {"a": HASH}),
    "array with commas": ("a: [1, 2, b]", {"a": [1, 2, "b"]}),
    "array with newlines": ("a: [\n b\n c # d\n]", {"a": ["b", "c"]}),
    "array with a trailing comma": ("a: [b, c,]", {"a": ["b", "c"]}),
    "empty array": ("a: []", {"a": []}),
    "nested arrays": ("a: [[1], [2, 3]]", {"a": [[1], [2, 3]]}),
    "array of blocks": ("a: [{b: 1}, {b: 2}]", {"a": [{"b": 1}, {"b": 2}]}),
    "later key wins": ("a: 1\na: 2", {"a": 2}),
    "variable": ("x: 5\na: $x", {"x": 5, "a": 5}),
    "variable of an enclosing block": ("x: 5\na { b: $x }", {"x": 5, "a": {"b": 5}}),
    "innermost variable wins": ("x: 5\na { x: 6, b: $x }", {"x": 5, "a": {"x": 6, "b": 6}}),
    "block string": ("a (\none\n  two )\n)\nb: 1", {"a": "\none\n  two )\n", "b": 1}),
    "whole file is JSON": ('{"a": {"b": [1, "c"]}, "d":\n false}', {"a": {"b": [1, "c"]}, "d": 0}),
}


@pytest.mark.parametrize(("text", "tree"), VALID.values(), ids=VALID.keys())
def test_text_becomes_a_tree(text, tree):
    assert tree == plain(parse(text))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1k", 1000),
        ("1K", 1000),
        ("1kb", 1024),
        ("1KB", 1024),
        ("1Ki", 1024),
        ("1KiB", 1024),
        ("2m", 2_000_000),
        ("64MB", 64 * 1024**2),
        ("1g", 10**9),
        ("1GiB", 1024**3),
        ("1T", 10**12),
        ("1TB", 1024**4),
        ("1P", 10**15),
        ("1PB", 1024**5),
        ("1E", 10**18),
        ("1EB", 1024**6),
        ("-8K", -8000),
    ],
)
def test_a_size_is_decimal_unless_it_says_bytes(text, number):
    assert number == parse(f"a: {text}")["a"].value


def test_a_value_remembers_the_text_it_was_written_as():
    assert "2m" == parse("a: 2m")["a"].text


ERRORS = {
    "a: 1 b: 2": "x.conf:1:6: expected a newline or a comma after the value, but found `b`",
    "a:": "x.conf:1:3: expected a value for `a`, but found the end of the file",
    "a": "x.conf:1:2: expected a value for `a`, but found the end of the file",
    "a:\n1": "x.conf:1:3: expected a value for `a`, but found a newline",
    "a: 1\n: 2": "x.conf:2:1: expected a key, but found `:`",
    "a: 1\n}": "x.conf:2:1: expected a key, but found `}`",
    "a: 1}": "x.conf:1:5: expected a newline or a comma after the value, but found `}`",
    "a {\n b: 1": "x.conf:2:6: unexpected end of file, `}` is missing",
    "a { b: 1 ]": "x.conf:1:10: expected a newline or a comma after the value, but found `]`",
    "a { b: }": "x.conf:1:8: expected a value for `b`, but found `}`",
    "a: [1, 2": "x.conf:1:9: unexpected end of file, `]` is missing",
    "a: [,]": "x.conf:1:5: expected a value, but found `,`",
    "a: [1 2]": "x.conf:1:7: expected a newline or a comma after the value, but found `2`",
    'a: "b': 'x.conf:1:4: `"` has no closing quote',
    "a: 'b": "x.conf:1:4: `'` has no closing quote",
    r'a: "\q"': r"x.conf:1:5: invalid escape `\q`",
    r'a: "\xzz"': r"x.conf:1:5: invalid escape `\x`",
    r'a: "\ud800"': "x.conf:1:5: half a surrogate pair",
    "a (\n b": "x.conf:1:3: `(` has no closing `)` on its own line",
    "a: 9223372036854775808": "x.conf:1:4: integer `9223372036854775808` is out of range",
    "a: $NOPE": "x.conf:1:4: variable `$NOPE` is neither an earlier key nor in the environment",
    "include 'b.conf'": "x.conf:1:9: `include` works only in files",
    "a: {" * 200: "x.conf:1:404: blocks are nested more than 100 deep",
    "a: " + "[" * 200: "x.conf:1:104: blocks are nested more than 100 deep",
}


@pytest.mark.parametrize(("text", "error"), ERRORS.items())
def test_an_error_says_what_was_expected_and_where(text, error):
    with pytest.raises(ConfigError) as caught:
        parse(text, source="x.conf")

    assert f"Parse error in {error}" == str(caught.value)


@pytest.mark.parametrize("seed", range(200))
def test_any_text_gives_a_tree_or_a_parse_error(seed):
    rng = random.Random(seed)
    pieces = ["a", ":", "=", "{", "}", "[", "]", "\n", " ", ",", ";", '"', "'", "\\", "$", "(", ")"]
    text = "".join(rng.choices([*pieces, "#", "//", "1", "k", "include", "-", "\u00e9"], k=40))

    with contextlib.suppress(ConfigError):
        parse(text)


def test_a_variable_comes_from_the_environment_as_if_written_there():
    environ = {"PORT": "4333", "NAME": "'a b'", "TAGS": "[x, y]", "EMPTY": ""}

    tree = parse("a: $PORT\nb: $NAME\nc: $TAGS\nd: $EMPTY", environ=environ)

    assert {"a": 4333, "b": "a b", "c": ["x", "y"], "d": ""} == plain(tree)


def test_a_key_comes_before_the_environment():
    assert 1 == parse("x: 1\na: $x", environ={"x": "2"})["a"].value


def test_variables_of_the_environment_may_not_go_round_in_circles():
    with pytest.raises(ConfigError, match=r"variable `\$A` refers to itself"):
        parse("a: $A", environ={"A": "$B", "B": "$A"})


def test_a_variable_marks_the_key_it_used():
    tree = parse("x: 1\ny: 2\na: $x")

    assert [True, False, False] == [node.used for node in tree.values()]


def test_a_lone_value_is_all_there_is():
    with pytest.raises(ConfigError, match="environment variable X:1:3: expected one value"):
        parse_value("1 2", source="environment variable X", environ={})


def test_positions_name_the_key_of_a_value():
    tree = parse("a: 1\n\n  b {\n    c: 2\n  }", source="x.conf")

    assert "x.conf:1:1" == tree["a"].at
    assert "x.conf:3:3" == tree["b"].at
    assert "x.conf:4:5" == tree["b"].value["c"].at


def write(directory: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(directory / next(iter(files)))


def test_an_included_file_is_relative_to_the_one_that_includes_it(tmp_path):
    path = write(
        tmp_path,
        {
            "a.conf": "a: 1\nblock { include 'sub/b.conf' }\nx: $b",
            "sub/b.conf": 'include "c.conf"\nb: 2',
            "sub/c.conf": "c: 3",
        },
    )

    with pytest.raises(ConfigError, match=r"variable `\$b`"):
        parse_file(path, {})
    assert {"a": 1, "block": {"c": 3, "b": 2}, "x": 9} == plain(parse_file(path, {"b": "9"}))


def test_an_include_needs_no_quotes(tmp_path):
    path = write(tmp_path, {"a.conf": "include b.conf # more\na: $b", "b.conf": "b: 2"})

    assert {"b": 2, "a": 2} == plain(parse_file(path, {}))


def test_include_with_a_separator_is_a_key():
    assert {"include": "x"} == plain(parse("include = x"))


def test_files_may_not_include_each_other_in_circles(tmp_path):
    path = write(tmp_path, {"a.conf": "include b.conf", "b.conf": "\ninclude ./a.conf"})

    with pytest.raises(ConfigError, match=r"b\.conf:2:9: `\./a\.conf` includes itself"):
        parse_file(path, {})


def test_errors_in_an_included_file_name_that_file(tmp_path):
    path = write(tmp_path, {"a.conf": "include b.conf", "b.conf": "\nb: ]"})

    with pytest.raises(ConfigError, match=r"Parse error in .*b\.conf:2:4: expected a value"):
        parse_file(path, {})


def test_files_that_cannot_be_read_are_named(tmp_path):
    path = write(tmp_path, {"a.conf": "include nope.conf"})
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match=r"1:9: cannot read include file `nope.conf`: No such"):
        parse_file(path, {})
    with pytest.raises(ConfigError, match=r"cannot read configuration file .*: No such file"):
        parse_file(str(tmp_path / "none.conf"), {})
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        parse_file(str(tmp_path / "binary.conf"), {})


SAME_AS_NATS_SERVER = {
    "separators": "port = 4222\nhost: localhost\nserver_name n1",
    "sizes": "max_payload: 1K\nmax_pending: 64MB\nmax_control_line: 4KiB\nmax_connections: 64k",
    "durations": "ping_interval: 30s\nwrite_deadline: '2m'\nlame_duck_duration: \"1h30m\"",
    "address": "listen: 127.0.0.1:-1\nhttp: localhost:8222",
    "comments": "# one\nport: 4222 // two\n\n// three\ndebug: on # four",
    "JSON": '{"port": 4222, "server_tags": ["a", "b"], "debug": false}',
    "arrays": "server_tags: [\n a\n 'b', \"c\"\n // d\n e,\n]",
    "escapes": r'server_metadata { a: "\t\"\\\x41", b: c\x20d, e: "<&>", "f g": "é" }',
    "variables": "x = 4222\nport: $x\nserver_name: $NAME",
    "block string": "server_metadata {\n a: (\none\n two)\n)\n}",
    "users": f"""
        authorization {{
          ADMIN = {{ publish = ">", subscribe = ">" }}
          default_permissions = {{ publish {{ deny: "a.>" }}, allow_responses: {{max: 2}} }}
          users = [
            {{user: a, password: {HASH}, permissions: $ADMIN}}
            {{user: b, pass: "x"}}
          ]
          timeout: 1.5
        }}""",
}


@pytest.mark.parametrize("text", SAME_AS_NATS_SERVER.values(), ids=SAME_AS_NATS_SERVER.keys())
def test_the_digest_is_the_one_of_nats_server(text, tmp_path):
    path = write(tmp_path, {"a.conf": text})
    environ = {"NAME": "n1"}

    run = subprocess.run(
        [NATS_SERVER, "-t", "-c", path], capture_output=True, text=True, env=environ
    )

    assert f"({digest(parse_file(path, environ))})" in run.stderr


STRINGS = ["'a b'", '"x\\ty"', "abc", "127.0.0.1:4222", "100ms", "a#b", "nats://x", "a=b", "1.2.3"]
STRINGS += ["$s", "$2a$11$abc", r"x\x41", "a//b", "1d", "a{b", "a[b", "é", '"a\nb"', "10.0.0.1"]
NUMBERS = ["4222", "1k", "64MB", "-1", "$v", "1KiB", "0123", "2Mi", "3m"]
ARRAYS = [
    "[a, b]",
    "[\n a\n b\n]",
    "[]",
    "['a b', $s]",
    "[a,b,]",
    "[a # c\n b]",
    "[\n// c\na,\n\nb]",
]
KEYS = [("client_advertise", STRINGS), ("max_payload", NUMBERS), ("server_tags", ARRAYS)]
SEPARATORS = [": ", " = ", " ", ":", "=", " : ", "\t"]
ENDS = ["\n", "; ", ", ", " // c\n", "\n\n", " # c, d\n", ";\n"]


def random_configuration(rng: random.Random) -> str:
    """Return a configuration that nats-server accepts, written in one of very many ways."""

    def entry(key, values):
        spelling = rng.choice([key, f'"{key}"', f"'{key}'"])
        return spelling + rng.choice(SEPARATORS) + rng.choice(values)

    lines = ["v = 5\n", "s = n1\n", "port: $v\n", "server_name: $s\n"]
    lines += [entry(*rng.choice(KEYS)) + rng.choice(ENDS) for _ in range(4)]
    inner = rng.choice(ENDS).join(entry(f"k{number}", STRINGS) for number in range(3))
    block = rng.choice(["{", "{\n", "{ # c\n"]) + inner + rng.choice(["}", " }", "\n}", " # c\n}"])
    text = "".join(lines) + f"server_metadata {block}\n"
    return f"{{{text}}}" if rng.random() < 0.2 else text


@pytest.mark.parametrize("seed", range(40))
def test_texts_of_many_styles_are_read_as_nats_server_reads_them(seed, tmp_path):
    path = write(tmp_path, {"a.conf": random_configuration(random.Random(seed))})

    run = subprocess.run([NATS_SERVER, "-t", "-c", path], capture_output=True, text=True)

    assert f"({digest(parse_file(path, {}))})" in run.stderr
