"""The context of a verb that connects: a client, the arguments, and ways to print."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cli.connection import SERVER, client_settings, settings_of
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from argparse import Namespace

    from penstock.client import Client, JetStream


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run of a verb."""

    command: str
    """The words of the command: `stream ls`."""
    arguments: Namespace
    client: Client
    js: JetStream
    errors: list[Exception] = field(default_factory=list)
    """Asynchronous errors from the server."""

    def show(self, text: str, document: Any) -> None:
        """Print a result: text for people, JSON for scripts."""
        if self.arguments.json:
            print(json.dumps(document, indent=2, ensure_ascii=False))
        elif text:
            print(text)

    def show_event(self, text: str, document: Any) -> None:
        """Print one of many results immediately: text, or one line of JSON."""
        line = json.dumps(document, ensure_ascii=False) if self.arguments.json else text
        print(line, flush=True)

    def done(self, text: str, document: Any) -> None:
        """Report a finished action: a sentence for people, JSON for scripts."""
        if self.arguments.json:
            self.show("", document)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Print to stderr for people; stdout is for data."""
        print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def open_context(
    arguments: Namespace, environ: Mapping[str, str], *, command: str
) -> AsyncIterator[Context]:
    """Connect with the options, and close at the end."""
    from penstock.client import connect

    errors: list[Exception] = []

    def lost(error: Exception) -> None:
        print(f"penstock: {error}", file=sys.stderr, flush=True)

    def back() -> None:
        print("penstock: connected again", file=sys.stderr, flush=True)

    timeout_s = arguments.timeout / SECOND_NS
    settings = settings_of(arguments, environ)
    client = await connect(
        settings.get("server", SERVER),
        name=f"penstock {command}",
        on_error=errors.append,
        on_disconnected=lost,
        on_reconnected=back,
        request_timeout_s=timeout_s,
        **client_settings(settings),
    )
    prefix = {name: settings[name] for name in ("domain", "api_prefix") if name in settings}
    async with client:
        js = client.jetstream(request_timeout_s=timeout_s, **prefix)
        yield Context(command=command, arguments=arguments, client=client, js=js, errors=errors)
