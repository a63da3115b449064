"""
`penstock reference`: the reference pages, rendered from the tables they describe.

The pages under `docs/reference` are the output of this command; a test compares them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from penstock.cli import bench, config, manual
from penstock.cli.arguments import Verb, argument
from penstock.cli.commands import COMMANDS, EXIT_CODES, path_of, verbs_of
from penstock.cli.reference import compatibility
from penstock.cli.serve.serve import COMMAND_FLAGS
from penstock.config.file.directives import (
    CLUSTER,
    DEBUG_AND_TRACE,
    DIRECTIVES,
    IGNORED,
    IGNORED_FLAGS,
    JOINING,
    REFUSED_FLAGS,
    UNSUPPORTED,
    Directive,
)
from penstock.config.file.explaining import written
from penstock.config.file.flags import spell
from penstock.config.file.loading import ENVIRONMENT_PREFIX
from penstock.config.server import Limits

SERVE = "All its options are those of the [configuration](configuration.md)."
USAGES: dict[str, Callable[[], str]] = {"bench": bench.usage, "config": lambda: config.USAGE}
"""The help of commands without a table of verbs."""

CONNECTION_INTRODUCTION = """\
All commands that talk to a server take these options, before or after the verb, and work with any
NATS server. An option overrides the context; a context replaces the environment variables. A
context that is only selected applies where neither `--server` nor `NATS_URL` names a server.
Contexts are those of the `nats` command, in `~/.config/nats/context`.

Sizes are `64MB` or `1GB`, durations `30s`, `1h30m` or `7d`. Results are on standard output,
messages on standard error. Without a terminal nothing is asked: what would be asked needs
`--force`."""

KINDS = {
    "str": "string",
    "str | None": "string",
    "bool": "boolean",
    "int": "number",
    "int | None": "number",
    "float": "duration",
    "float | Literal['always']": "duration or `always`",
    "Literal['chacha', 'aes']": "`chacha` or `aes`",
    "tuple[CertificateFiles, ...]": "list of blocks",
    "HandshakeFirst": "boolean, `auto` or duration",
    "TlsVersion": "version",
    "tuple[str, ...]": "list of strings",
    "Mapping[str, str]": "block of strings",
    "tuple[RemoteConfig, ...]": "list of remotes",
    "tuple[User, ...]": "list of users",
    "Permissions | None": "permissions",
    "tuple[Account, ...]": "block of accounts",
    "tuple[SubjectMapping, ...]": "block of mappings",
    "tuple[OperatorToken, ...]": "token, file, or list of them",
    "AuthCallout | None": "block",
    "Resolver | None": "`MEMORY` or block",
    "address": "`host:port` or port",
}

INTRODUCTION = f"""\
# Configuration

Every setting of `penstock serve`. This page is made by `penstock reference configuration`
from the fields in `penstock.config`; change it there.

A setting comes from, each winning over those before it:

1. the file named with `-c`, in nats-server's configuration language;
2. the environment: `{ENVIRONMENT_PREFIX}` and the directive in capitals, with `__` for the dot,
   as in `{ENVIRONMENT_PREFIX}MAX_PAYLOAD=8MB` or `{ENVIRONMENT_PREFIX}JETSTREAM__STORE_DIR=/data`;
3. the command line. Flags take one dash or two, and a value after a space or `=`.

`penstock serve -t -c FILE` checks a file and shows what it sets; `penstock config explain`
shows every setting in effect and where it came from. An unknown directive is an error that names
the nearest known one. `SIGHUP` (`penstock serve --signal reload=PID`) reads the file again.

## The language

```
# A comment; // starts one too.
port: 4222                      # `=` or a space do as well as `:`
max_payload = 8MB               # 1K is 1000; 1KB and 1KiB are 1024
ping_interval "90s"             # a duration: ns, us, ms, s, m, h, d; a plain number is seconds
server_tags: [a, b]             # commas or newlines between values
include "users.conf"            # relative to this file
authorization {{ token: $TOKEN }} # an earlier key, or else the environment
```

A whole file may be one JSON object. Quotes are optional; `( … )` with the closing parenthesis on a
line of its own is a string of several lines.
"""

PERMISSIONS = """\
`permissions` of a user, and `default_permissions`, have `publish` and `subscribe`, each a subject,
a list of subjects, or a block of `allow` and `deny`, where deny wins; a subscribe rule may name a
queue group, `"subject queue"`. `allow_responses: true` lets a user answer the requests it receives,
once each and for two minutes unless `{ max: 5, expires: "1m" }` says otherwise.

```
authorization {
  users: [
    { user: orders, password: $2a$11$…, permissions: {
        publish: "orders.>"
        subscribe: { allow: ["orders.>", "_INBOX.>"], deny: "orders.internal.>" }
    } }
  ]
}
```
"""


def print_page(arguments: Namespace) -> int:
    """Print a page of the reference."""
    print(PAGES[arguments.page](), end="")
    return 0


def configuration_page() -> str:
    """Return the reference of every setting."""
    parts = [INTRODUCTION]
    for section in dict.fromkeys(directive.section for directive in DIRECTIVES.values()):
        rows = [d for d in DIRECTIVES.values() if d.section == section]
        parts.append(f"## {section}\n\n{_directive_table(rows)}")
        if section == "Authorization":
            parts.append(PERMISSIONS)
        if section == "Limits":
            parts.append(_python_only(Limits))
    parts.append(f"## Other flags\n\n{_flag_table()}")
    parts.append(f"## Left out\n\n{_left_out()}")
    return "\n".join(parts)


def commands_page() -> str:
    """Return the reference of every command."""
    lines = ["# Commands", "", "Made by `penstock reference commands`.", ""]
    for name, command in COMMANDS.items():
        lines += [f"## `penstock {name}`", "", command.summary, ""]
        lines += _verbs(name)
    lines += ["## Connection", "", CONNECTION_INTRODUCTION, "", *manual.connection_chapter()]
    lines += ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join([*lines, ""])


def _verbs(command: str) -> list[str]:
    """Return the chapters of a command's verbs, or of the command if it is a verb itself."""
    if command == "serve":
        return [SERVE, ""]
    if command in USAGES:
        return ["```", USAGES[command](), "```", ""]
    lines = []
    for verb in verbs_of(command):
        path = path_of(command, verb)
        if path != command:
            lines += [f"### `penstock {path}`", "", verb.summary, ""]
        lines += manual.chapter(path, verb)
    return lines


PAGES: dict[str, Callable[[], str]] = {
    "configuration": configuration_page,
    "commands": commands_page,
    "compatibility": compatibility.page,
}
REFERENCE = Verb(
    name="reference",
    summary="Print a page of the reference.",
    run=print_page,
    arguments=(
        argument("page", metavar="PAGE", choices=tuple(PAGES), doc=f"`{'`, `'.join(PAGES)}`."),
    ),
    connects=False,
)


def _directive_table(directives: list[Directive]) -> str:
    lines = ["| directive | value | default | flags | meaning |", "|---|---|---|---|---|"]
    for directive in directives:
        names = ", ".join(f"`{name}`" for name in (directive.name, *directive.aliases))
        flags = ", ".join(f"`-{flag}`" for flag in directive.flags)
        default = _default(directive.default, is_size=directive.is_size)
        lines.append(
            f"| {names} | {KINDS[directive.kind]} | {default} | {flags} | {directive.doc} |"
        )
    return "\n".join(lines) + "\n"


def _python_only(config: type) -> str:
    """Return the settings that have no directive."""
    lines = [
        f"A server inside a Python program can set these fields of `{config.__name__}` too:",
        "",
    ]
    for item in fields(config):
        if item.metadata["directive"] is None:
            default = _default(item.default, is_size=item.metadata["size"])
            lines.append(f"- `{item.name}` ({default}): {item.metadata['doc']}")
    return "\n".join(lines) + "\n"


def _flag_table() -> str:
    lines = ["| flags | meaning |", "|---|---|"]
    for flag in (DEBUG_AND_TRACE, *COMMAND_FLAGS):
        lines.append(f"| `{spell(flag)}` | {flag.doc} |")
    return "\n".join(lines) + "\n"


def _left_out() -> str:
    """Return the directives of nats-server that we do not have, by remedy."""
    ignored = {name: flag.doc for flag in IGNORED_FLAGS for name in flag.names}
    refused = _by_reason(UNSUPPORTED, REFUSED_FLAGS)
    refused += [f"- `{block}.{key}`: {CLUSTER}." for block, key in JOINING.items()]
    lines = ["Using one of these is an error that names the alternative.", "", *refused, ""]
    lines += ["These have no effect; a warning names the file and the line.", ""]
    return "\n".join([*lines, *_by_reason(IGNORED, ignored)]) + "\n"


def _by_reason(directives: Mapping[str, str], flags: Mapping[str, str]) -> list[str]:
    lines = []
    for reason in dict.fromkeys((*directives.values(), *flags.values())):
        names = [name for name, why in directives.items() if why == reason]
        names += [f"-{name}" for name, why in flags.items() if why == reason]
        lines.append(f"- {', '.join(f'`{name}`' for name in names)}: {reason}.")
    return lines


def _default(value: Any, *, is_size: bool) -> str:
    """Return a default as a configuration file has it."""
    return "" if value in (None, (), "") else f"`{written(value, is_size=is_size)}`"
