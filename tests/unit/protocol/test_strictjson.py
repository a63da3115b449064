"""JSON requests are read as strictly as nats-server reads them, with its sentences."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol import strictjson
from penstock.protocol.strictjson import InvalidJson, OneOf

KINDS: dict[str, Any] = {
    "text": "string",
    "flag": "bool",
    "small": "int32",
    "count": "int64",
    "sequence": "uint64",
    "wait": "time.Duration",
    "names": "[]string",
    "labels": "map[string]string",
    "when": "time.Time",
    "how": ("one", "two"),
    "which": OneOf(("a", "b"), "no such thing: {}"),
    "inner": {"text": "string"},
    "any": strictjson.ANYTHING,
}


def read(text: str) -> dict[str, Any]:
    return strictjson.decode(text.encode(), KINDS, "T")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{}", {}),
        ("null", {}),
        ('{"text":null,"names":null}', {}),
        ('{"TEXT":"x"}', {"text": "x"}),
        ('{"flag":true,"small":-2147483648}', {"flag": True, "small": -(1 << 31)}),
        ('{"sequence":18446744073709551615}', {"sequence": (1 << 64) - 1}),
        ('{"wait":-1,"count":9223372036854775807}', {"wait": -1, "count": (1 << 63) - 1}),
        ('{"names":["a",null]}', {"names": ("a", "")}),
        ('{"labels":{"a":"b","c":null}}', {"labels": {"a": "b", "c": ""}}),
        ('{"when":"2026-01-02T03:04:05Z"}', {"when": "2026-01-02T03:04:05Z"}),
        ('{"how":"two","which":"a"}', {"how": "two", "which": "a"}),
        ('{"inner":{"TEXT":"x"}}', {"inner": {"text": "x"}}),
        ('{"any":[1,{"x":"y"}]}', {"any": [1, {"x": "y"}]}),
        ('{"text":"\\ud800x"}', {"text": "\ufffdx"}),
    ],
)
def test_every_kind_of_value_is_read(text: str, expected: dict[str, Any]) -> None:
    assert expected == read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "json: cannot unmarshal array into Go value of type server.T"),
        ('"x"', "json: cannot unmarshal string into Go value of type server.T"),
        ('{"nope":1}', 'json: unknown field "nope"'),
        ('{"text":1}', "json: cannot unmarshal number into Go struct field T.text of type string"),
        ('{"flag":"x"}', "json: cannot unmarshal string into Go struct field T.flag of type bool"),
        (
            '{"small":2147483648}',
            "json: cannot unmarshal number 2147483648 into Go struct field T.small of type int32",
        ),
        (
            '{"sequence":-1}',
            "json: cannot unmarshal number -1 into Go struct field T.sequence of type uint64",
        ),
        (
            '{"count":1.0}',
            "json: cannot unmarshal number 1.0 into Go struct field T.count of type int64",
        ),
        (
            '{"wait":"5s"}',
            "json: cannot unmarshal string into Go struct field T.wait of type time.Duration",
        ),
        (
            '{"names":"a"}',
            "json: cannot unmarshal string into Go struct field T.names of type []string",
        ),
        ('{"names":["a",1]}', "json: cannot unmarshal number into T.names.1 of type string"),
        (
            '{"labels":{"a":1}}',
            "json: cannot unmarshal number into Go struct field T.labels.a of type string",
        ),
        ('{"when":5}', "Time.UnmarshalJSON: input is not a JSON string"),
        ('{"how":"three"}', 'can not unmarshal "\\"three\\""'),
        ('{"which":"c"}', 'no such thing: "c"'),
        (
            '{"inner":{"text":{}}}',
            "json: cannot unmarshal object into Go struct field T.inner.text of type string",
        ),
    ],
)
def test_a_value_of_another_kind_is_refused_in_the_words_of_go(text: str, said: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        read(text)

    assert said == caught.value.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "unexpected EOF"),
        ("x", "invalid character 'x' looking for beginning of value at offset 1"),
        ("{,", "invalid character ',' looking for beginning of object key string at offset 2"),
        ('{"a" 1}', "invalid character '1' after object key at offset 6"),
        ('{"a":1 2}', "invalid character '2' after object key:value pair at offset 8"),
        ("[1 2]", "invalid character '2' after array element at offset 4"),
        ("[tru]", "invalid character ']' in literal true (expecting 'e') at offset 5"),
        ("[01]", "invalid character '1' after array element at offset 3"),
        ("[-]", "invalid character ']' in numeric literal at offset 3"),
        ("[1.]", "invalid character ']' in numeric literal at offset 4"),
        ("[1e+]", "invalid character ']' in numeric literal at offset 5"),
        ('["\n"]', "invalid character '\\n' in string at offset 3"),
        ('["\\x"]', "invalid escape sequence `\\x` in string at offset 4"),
        ('["\\u12g4"]', "invalid escape sequence `\\u12g4` in string at offset 8"),
        ('["ä" 1]', "invalid character '1' after array element at offset 7"),
        ("NaN", "invalid character 'N' looking for beginning of value at offset 1"),
    ],
)
def test_an_error_of_syntax_is_located_as_go_does(text: str, said: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        read(text)

    assert said == str(caught.value)


@pytest.mark.parametrize(
    ("request_text", "has_options"),
    [(b"", False), (b" \n{}", True), (b"[1]", True), (b"text", False), (b"1", False)],
)
def test_only_objects_and_arrays_are_options(request_text: bytes, has_options: bool) -> None:
    assert has_options == strictjson.is_object_or_array(request_text)


def test_json_that_is_not_strict_passes_over_what_it_does_not_know() -> None:
    kinds = {"seq": "uint64"}
    assert {"seq": 1} == strictjson.decode(b'{"SEQ":1,"x":[]}', kinds, "T", strict=False)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_json_that_is_nested_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(strictjson.InvalidJson, match="exceeded max depth"):
        strictjson.decode(b"[" * depth, {}, "T")


@pytest.mark.parametrize(
    "text", [b'{"a":"1"}{"b":"2"}', b' {"a":"1"} \n\t{"b":"2"}\r\n ', b'{"a":"1"}null{"b":"2"}']
)
def test_values_one_after_another_are_all_read(text: bytes) -> None:
    assert {"a": "1", "b": "2"} == strictjson.decode(text, {"a": "string", "b": "string"}, "T")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{}" * 17, "more than 16 values in a request"),
        (b" " * (256 * 1024 + 1), "a request may have at most 262144 bytes"),
        (b"[" + b"1," * 10_000 + b"x", "invalid JSON in a request too long to say where"),
        (b'{"a":"' + b"a" * 4097 + b'"}', "T.a is longer than 4096 characters"),
        (b'{"b":["x","' + b"a" * 4097 + b'"]}', "T.b is longer than 4096 characters"),
    ],
)
def test_a_request_that_is_too_large_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(strictjson.InvalidJson) as caught:
        strictjson.decode(text, {"a": "subject", "b": "[]subject"}, "T")

    assert problem == str(caught.value)


def test_lists_of_objects_and_durations_are_read() -> None:
    kinds = {"items": [{"name": "string"}], "waits": "[]time.Duration", "any": "interface {}"}
    document = b'{"items":[{"name":"a"},{}],"waits":[1,2],"any":[{}]}'

    expected = {"items": [{"name": "a"}, {}], "waits": (1, 2), "any": [{}]}
    assert expected == strictjson.decode(document, kinds, "T")


@pytest.mark.parametrize(
    ("document", "found", "kind"),
    [(b'{"items":{}}', "object", "[]object"), (b'{"items":[1]}', "number", "object")],
)
def test_lists_of_something_else_are_refused(document: bytes, found: str, kind: str) -> None:
    with pytest.raises(strictjson.InvalidJson) as caught:
        strictjson.decode(document, {"items": [{"name": "string"}]}, "T")
    expected = f"json: cannot unmarshal {found} into Go struct field T.items of type {kind}"
    assert expected == caught.value.text
