"""`penstock context`: name servers once, and use them by name."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from typing import Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.confirm import FORCE, confirm
from penstock.cli.connection import JSON, SETTINGS, named_settings
from penstock.cli.contexts.files import FIELDS, ContextFiles
from penstock.cli.runner import run_command, run_plain
from penstock.cli.terminal import table
from penstock.errors import ConfigError
from penstock.protocol.redaction import redact
from penstock.protocol.tables import details

SECRETS = ("password", "token", "user_seed")
HIDDEN = "(hidden)"


def run(arguments: list[str]) -> int:
    """Run `penstock context` and return the exit code."""
    return run_command("context", VERBS, arguments, run_plain)


def save(arguments: Namespace) -> int:
    """Create a context, or change the named settings of one."""
    files = _files()
    exists = arguments.name in files.names()
    given = {FIELDS[name]: value for name, value in named_settings(arguments).items()}
    if arguments.description is not None:
        given["description"] = arguments.description
    if not exists and "url" not in given:
        raise ConfigError("a new context needs a server; hint: add --server URL")
    files.write(arguments.name, (files.read(arguments.name) if exists else {}) | given)
    if arguments.select:
        files.select(arguments.name)
    return _done(f"saved context `{arguments.name}` in `{files.path(arguments.name)}`")


def list_contexts(arguments: Namespace) -> int:
    """Print all contexts; the selected one has a mark."""
    files = _files()
    selected = files.selected
    found = [(name, files.read(name)) for name in files.names()]
    if arguments.json:
        documents = [
            {"name": name, "selected": name == selected, **_shown(fields)} for name, fields in found
        ]
        print(json.dumps(documents, indent=2, ensure_ascii=False))
    elif found:
        rows = [_row(name, fields, name == selected) for name, fields in found]
        print(table(("", "NAME", "SERVER", "DESCRIPTION"), rows, left=4))
    else:
        print("no contexts\nhint: penstock context save NAME --server URL", file=sys.stderr)
    return 0


def select(arguments: Namespace) -> int:
    """Use a context wherever no server is named, or none."""
    files = _files()
    if bool(arguments.name) == arguments.none:
        raise ConfigError("which context? hint: its name, or --none")
    files.select(arguments.name or "")
    return _done(
        f"selected context `{arguments.name}`" if arguments.name else "no context selected"
    )


def show(arguments: Namespace) -> int:
    """Print one context; secrets only on demand."""
    files = _files()
    name = arguments.name or files.selected
    if not name:
        raise ConfigError("no context is selected; hint: penstock context show NAME")
    fields = files.read(name)
    fields = fields if arguments.secrets else _shown(fields)
    if arguments.json:
        print(json.dumps({"name": name, **fields}, indent=2, ensure_ascii=False))
    else:
        rows = [(field, str(value)) for field, value in fields.items() if value]
        print(f"Context {name}, in {files.path(name)}\n\n{details(rows)}")
    return 0


def remove(arguments: Namespace) -> int:
    """Delete a context."""
    files = _files()
    files.read(arguments.name)
    confirm(f"Delete context `{arguments.name}`?", force=arguments.force)
    files.remove(arguments.name)
    return _done(f"deleted context `{arguments.name}`")


def _files() -> ContextFiles:
    return ContextFiles(os.environ)


def _row(name: str, fields: dict[str, Any], is_selected: bool) -> tuple[str, ...]:
    server, description = (str(fields.get(field) or "") for field in ("url", "description"))
    return ("*" * is_selected, name, redact(server), description)


def _shown(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without their secrets."""
    hidden = {name: HIDDEN for name in SECRETS if fields.get(name)}
    url = {"url": redact(str(fields["url"]))} if fields.get("url") else {}
    return {**fields, **hidden, **url}


def _done(text: str) -> int:
    print(text, file=sys.stderr)
    return 0


NAME = argument("name", metavar="NAME", doc="")
OPTIONAL_NAME = argument("name", metavar="NAME", nargs="?", doc="Default: the selected context.")

VERBS = (
    Verb(
        name="save",
        aliases=("add", "create"),
        summary="Save a context, or change the given settings of one.",
        run=save,
        arguments=(
            NAME,
            argument("--description", metavar="TEXT", doc="Description."),
            argument("--select", action="store_true", doc="Select it, too."),
            *SETTINGS,
        ),
    ),
    Verb(
        name="ls",
        aliases=("list",),
        summary="List contexts; a star marks the selected one.",
        run=list_contexts,
        arguments=(JSON,),
    ),
    Verb(
        name="select",
        summary="Use a context wherever no server is named.",
        run=select,
        arguments=(
            argument("name", metavar="NAME", nargs="?", doc="The context."),
            argument("--none", action="store_true", doc="Select no context."),
        ),
    ),
    Verb(
        name="show",
        aliases=("info",),
        summary="Show the settings of a context.",
        run=show,
        arguments=(
            OPTIONAL_NAME,
            argument("--secrets", action="store_true", doc="Show passwords and tokens."),
            JSON,
        ),
    ),
    Verb(
        name="rm",
        aliases=("delete",),
        summary="Delete a context.",
        run=remove,
        arguments=(NAME, FORCE),
    ),
)
