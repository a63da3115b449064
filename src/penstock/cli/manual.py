"""Text about commands with verbs: help on a terminal, a chapter of the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.cli.arguments import Argument, Verb
from penstock.cli.connection import CONNECTION

SPELLING_WIDTH = 34


def usage_line(path: str, verb: Verb) -> str:
    """Return the synopsis of a verb; `path` comes before its arguments."""
    words = [each.spelling for each in verb.positionals]
    return " ".join(["penstock", path, *words, "[options]"])


def command_help(command: str, summary: str, verbs: Sequence[Verb]) -> str:
    """Return the help of a command: its verbs."""
    names = [", ".join((verb.name, *verb.aliases)) for verb in verbs]
    width = max(map(len, names))
    return "\n".join(
        [
            f"Usage: penstock {command} <verb> [options]",
            "",
            summary,
            "",
            *(f"  {name:{width}}  {verb.summary}" for name, verb in zip(names, verbs, strict=True)),
            "",
            f"More: penstock {command} <verb> --help",
        ]
    )


def verb_help(path: str, verb: Verb) -> str:
    """Return the help of one verb: all its arguments."""
    lines = [f"Usage: {usage_line(path, verb)}", "", verb.summary]
    described = [each for each in verb.positionals if each.doc]
    if described:
        lines += ["", *map(_help_line, described)]
    for section, options in sections(verb.options):
        lines += ["", f"{section}:", *map(_help_line, options)]
    return "\n".join(lines)


def sections(options: Iterable[Argument]) -> list[tuple[str, list[Argument]]]:
    """Return options by heading, in the order of the table."""
    by_section: dict[str, list[Argument]] = {}
    for option in options:
        if not option.doc:
            continue  # The text of its counterpart names it.
        by_section.setdefault(option.section, []).append(option)
    return list(by_section.items())


def chapter(path: str, verb: Verb) -> list[str]:
    """Return the chapter of the reference about one verb."""
    lines = ["```", usage_line(path, verb), "```", ""]
    if verb.aliases:
        lines += [f"Also: {', '.join(f'`{alias}`' for alias in verb.aliases)}.", ""]
    options = [each for each in verb.options if each.doc and each not in CONNECTION]
    rows = [*(each for each in verb.positionals if each.doc), *options]
    if rows:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [_row(each) for each in rows]
        lines.append("")
    return lines


def connection_chapter() -> list[str]:
    """Return the chapter of the reference about the options of every verb that connects."""
    return ["| option | meaning |", "|---|---|", *map(_row, CONNECTION), ""]


def _row(argument: Argument) -> str:
    spelling, doc = argument.spelling.replace("|", "\\|"), argument.doc.replace("|", "\\|")
    return f"| `{spelling}` | {doc} |"


def _help_line(argument: Argument) -> str:
    spelling = argument.spelling
    if len(spelling) < SPELLING_WIDTH:
        return f"    {spelling:{SPELLING_WIDTH}}{argument.doc}"
    return f"    {spelling}\n    {'':{SPELLING_WIDTH}}{argument.doc}"
