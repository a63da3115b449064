"""Flags as Go reads them."""

import pytest

from penstock.config.file.flags import Flag, parse_flags
from penstock.errors import ConfigError

FLAGS = (
    Flag(names=("p", "port"), kind=int, doc="Port."),
    Flag(names=("js", "jetstream"), kind=bool, doc="JetStream."),
    Flag(names=("sd", "store_dir"), kind=str, doc="Directory."),
)
REFUSED = {"cluster": "there is no cluster here"}


def parse(*arguments):
    given, rest = parse_flags(arguments, FLAGS, REFUSED)
    return [(item.flag.names[0], item.value) for item in given], rest


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["-p", "1"], [("p", 1)]),
        (["--p", "1"], [("p", 1)]),
        (["-port=1"], [("p", 1)]),
        (["--port=1"], [("p", 1)]),
        (["-p", "-1"], [("p", -1)]),
        (["-p", "0x10"], [("p", 16)]),
        (["-sd=/a=b"], [("sd", "/a=b")]),
        (["-sd", "-p"], [("sd", "-p")]),
        (["-sd="], [("sd", "")]),
        (["-js"], [("js", True)]),
        (["-js=false"], [("js", False)]),
        (["--jetstream=T"], [("js", True)]),
        (["-p", "1", "-js", "-p", "2"], [("p", 1), ("js", True), ("p", 2)]),
    ],
)
def test_one_dash_or_two_and_a_value_after_space_or_equals_sign(arguments, values):
    assert (values, []) == parse(*arguments)


def test_flags_end_at_the_first_other_argument():
    assert ([("js", True)], ["false", "-p", "1"]) == parse("-js", "false", "-p", "1")
    assert ([("js", True)], ["-", "-p"]) == parse("-js", "-", "-p")
    assert ([("js", True)], ["-p"]) == parse("-js", "--", "-p")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-prot", "1"], "flag provided but not defined: -prot; did you mean -port?"),
        (["-zzz"], "flag provided but not defined: -zzz"),
        (["-p"], "flag needs an argument: -p"),
        (["-p", "x"], 'invalid value "x" for flag -p: not a number'),
        (["-js=maybe"], 'invalid boolean value "maybe" for flag -js'),
        (["---p"], "bad flag syntax: ---p"),
        (["-=1"], "bad flag syntax: -=1"),
        (["--cluster=x"], "flag -cluster is not supported: there is no cluster here"),
    ],
)
def test_an_error_names_the_flag(arguments, error):
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)

    assert error == str(caught.value)
