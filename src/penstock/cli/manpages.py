"""`penstock man`: manual pages, made from the tables of the commands."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.cli import manual
from penstock.cli.arguments import Argument, Verb, argument
from penstock.cli.commands import COMMANDS, EXIT_CODES, path_of, verbs_of
from penstock.errors import ClientError, reason
from penstock.protocol.version import VERSION

SECTION = 1


def write_pages(arguments: Namespace) -> int:
    """Write a page for each command to a directory."""
    try:
        arguments.directory.mkdir(parents=True, exist_ok=True)
        for name, page in pages().items():
            (arguments.directory / f"{name}.{SECTION}").write_text(page, encoding="utf-8")
    except OSError as error:
        raise ClientError(f"cannot write `{arguments.directory}`: {reason(error)}") from None
    return 0


def pages() -> dict[str, str]:
    """Return every page by its name: `penstock`, and one for each command."""
    return {"penstock": _main_page()} | {
        f"penstock-{name}": _command_page(name) for name in COMMANDS
    }


def _main_page() -> str:
    lines = _head("penstock", "event streaming that speaks NATS")
    lines += [".SH SYNOPSIS", ".B penstock", r"\fICOMMAND\fR [options]", ".SH COMMANDS"]
    for name, command in COMMANDS.items():
        lines += [".TP", rf"\fBpenstock-{_escaped(name)}\fR({SECTION})", _escaped(command.summary)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", rf"\fB{code}\fR", _escaped(meaning)]
    return "\n".join([*lines, ""])


def _command_page(name: str) -> str:
    verbs = verbs_of(name)
    lines = _head(f"penstock-{name}", COMMANDS[name].summary)
    lines += [".SH SYNOPSIS"]
    if not verbs:
        lines += [rf"\fBpenstock {name}\fR [options]", ".SH DESCRIPTION"]
        lines.append(rf"\fBpenstock {name} \-\-help\fR lists its options.")
    for verb in verbs:
        lines += [".br", _escaped(manual.usage_line(path_of(name, verb), verb))]
    for verb in verbs:
        lines += [rf".SH {_escaped(path_of(name, verb)).upper()}", _escaped(verb.summary)]
        lines += _arguments(verb)
    return "\n".join([*lines, ""])


def _arguments(verb: Verb) -> Iterator[str]:
    yield from _items(each for each in verb.positionals if each.doc)
    for title, options in manual.sections(verb.options):
        yield f".SS {_escaped(title)}"
        yield from _items(options)


def _items(arguments: Iterable[Argument]) -> Iterator[str]:
    for each in arguments:
        yield from (".TP", rf"\fB{_escaped(each.spelling)}\fR", _escaped(each.doc))


def _head(name: str, summary: str) -> list[str]:
    title = f'.TH "{name.upper()}" "{SECTION}" "" "Penstock {VERSION}" "Penstock"'
    return [title, ".SH NAME", rf"{_escaped(name)} \- {_escaped(summary.rstrip('.'))}"]


def _escaped(text: str) -> str:
    r"""Return a text that roff prints as it is; a backquoted word is bold."""
    parts = text.replace("\\", r"\e").replace("-", r"\-").split("`")
    bold = [rf"\fB{part}\fR" if index % 2 else part for index, part in enumerate(parts)]
    joined = "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in "".join(bold))
    return rf"\&{joined}" if joined.startswith((".", "'")) else joined


MAN = Verb(
    name="man",
    summary="Write the manual pages: `man -l DIR/penstock-stream.1` shows one.",
    run=write_pages,
    connects=False,
    arguments=(argument("directory", metavar="DIR", type=Path, doc="Directory for the pages."),),
)
