"""`penstock stream`: create, show, edit, read and purge streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.confirm import FORCE, confirm
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.payload import message_text, write_raw
from penstock.cli.runner import run_command
from penstock.cli.settings import CONFIG_FILE, by_name, difference, given, options, without_told
from penstock.cli.stream import backup, paging, reports
from penstock.cli.stream.paging import stored_document
from penstock.cli.stream.settings import STREAM_SETTINGS
from penstock.cli.stream.view import StreamFigures, info_text, list_text
from penstock.cli.values import read_positive, show_many, show_time
from penstock.cli.watch import WATCH, watch
from penstock.errors import ConfigError
from penstock.protocol.tables import details

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: list[str]) -> int:
    """Run `penstock stream` and return the exit code."""
    return run_command("stream", VERBS, arguments)


async def list_streams(context: Context) -> None:
    """Print all streams."""
    streams = context.js.streams
    subject = context.arguments.subject
    if context.arguments.names:
        names = sorted(await streams.names(subject=subject))
        context.show("\n".join(names), names)
        return
    infos = sorted(
        await streams.list(subject=subject), key=lambda info: str(info["config"]["name"])
    )
    context.show(list_text(infos) if infos else "", infos)
    if not infos:
        context.say("no streams\nhint: penstock stream create NAME --subjects SUBJECT")


async def info(context: Context) -> None:
    """Print one stream in full."""
    request = {"subjects_filter": context.arguments.subjects} if context.arguments.subjects else {}
    found = await context.js.streams.info(context.arguments.stream, **request)
    context.show(info_text(found), found)


async def create(context: Context) -> None:
    """Create a stream; a different one with the same name is an error."""
    config = given(STREAM_SETTINGS, context.arguments)
    name = _name(context, config)
    created = await context.js.streams.create(name, **config)
    context.show(info_text(created), created)


async def copy(context: Context) -> None:
    """Create a stream with the configuration of another one."""
    arguments = context.arguments
    found = await context.js.streams.info(arguments.source)
    config = without_told(found["config"]) | given(STREAM_SETTINGS, arguments)
    if arguments.subjects is None and not (config.get("mirror") or config.get("sources")):
        raise ConfigError("two streams cannot store the same subjects; hint: add --subjects")
    created = await context.js.streams.create(**{**config, "name": arguments.stream})
    context.show(info_text(created), created)


async def edit(context: Context) -> None:
    """Show the changes, ask, and apply them."""
    name = context.arguments.stream
    found = await context.js.streams.info(name)
    old = without_told(found["config"])
    new = {**old, **given(STREAM_SETTINGS, context.arguments), "name": name}
    if new.get("mirror") == by_name(""):
        del new["mirror"]
    changes = difference(STREAM_SETTINGS, old, new)
    if changes:
        context.say(details(changes))
        confirm(f"Apply these changes to stream `{name}`?", force=context.arguments.force)
        found = await context.js.streams.update(**new)
        context.say(f"changed stream `{name}`")
    else:
        context.say(f"stream `{name}` needs no change")
    context.show("", found)


async def purge(context: Context) -> None:
    """Delete all or some messages of a stream."""
    arguments = context.arguments
    if arguments.keep is not None and arguments.seq is not None:
        raise ConfigError("only one of `--keep` and `--seq` can be used")
    request = _given(filter=arguments.subject, keep=arguments.keep, seq=arguments.seq)
    state = (await context.js.streams.info(arguments.stream))["state"]
    confirm(
        f"Delete {_which(arguments)} of the {show_many(state['messages'], 'message')} "
        f"of stream `{arguments.stream}`?",
        force=arguments.force,
    )
    purged = await context.js.streams.purge(arguments.stream, **request)
    context.done(f"purged {show_many(purged, 'message')}", {"purged": purged})


async def remove(context: Context) -> None:
    """Delete a stream and all its messages."""
    name = context.arguments.stream
    state = (await context.js.streams.info(name))["state"]
    messages, consumers = state["messages"], state["consumer_count"]
    holds = f"{show_many(messages, 'message')} and {show_many(consumers, 'consumer')}"
    confirm(f"Delete stream `{name}` with {holds}?", force=context.arguments.force)
    await context.js.streams.delete(name)
    context.done(f"deleted stream `{name}`", {"deleted": name})


async def get(context: Context) -> None:
    """Print one message."""
    arguments = context.arguments
    request = _given(
        seq=arguments.seq, last_by_subj=arguments.last_for, next_by_subj=arguments.next_for
    )
    if not request:
        raise ConfigError("which message? hint: give a sequence, or --last-for SUBJECT")
    if "last_by_subj" in request and len(request) > 1:
        raise ConfigError("`--last-for` cannot be used with a sequence or `--next-for`")
    message = await context.js.streams.get(arguments.stream, **request)
    if arguments.raw:
        write_raw(message.payload)
        return
    title = f"[{message.sequence}] {message.subject}  {show_time(message.time)} UTC"
    context.show(
        message_text(title, message.header_pairs, message.payload), stored_document(message)
    )


async def remove_message(context: Context) -> None:
    """Delete one message."""
    arguments = context.arguments
    confirm(f"Delete message {arguments.seq} of `{arguments.stream}`?", force=arguments.force)
    await context.js.streams.delete_message(arguments.stream, arguments.seq, erase=arguments.erase)
    context.done(f"deleted message {arguments.seq}", {"deleted": arguments.seq})


async def watch_stream(context: Context) -> None:
    """Show the figures of a stream as they change."""
    figures = StreamFigures(context.js, context.arguments.stream)
    await watch(context, figures.look)


def _name(context: Context, config: dict[str, Any]) -> str:
    """Return the stream's name, given by an argument or by a file."""
    from_file = config.pop("name", None)
    name: str = context.arguments.stream or from_file or ""
    if not name:
        raise ConfigError("missing: NAME")
    return name


def _given(**request: Any) -> dict[str, Any]:
    """Return the fields of a request that have a value."""
    return {name: value for name, value in request.items() if value is not None}


def _which(arguments: Namespace) -> str:
    """Describe the messages of a purge."""
    which = "all"
    if arguments.keep:
        which = f"all but the last {arguments.keep}"
    elif arguments.seq:
        which = f"those before sequence {arguments.seq}"
    return f"{which} on `{arguments.subject}`" if arguments.subject else which


STREAM = argument("stream", metavar="NAME", doc="")
SEQUENCE = argument("seq", metavar="SEQUENCE", type=read_positive, doc="")
SETTINGS = (CONFIG_FILE, *options(STREAM_SETTINGS))

VERBS = (
    Verb(
        name="ls",
        aliases=("list",),
        summary="List streams.",
        run=list_streams,
        arguments=(
            argument(
                "--subject",
                metavar="SUBJECT",
                default="",
                doc="Only streams that store this subject.",
            ),
            argument("--names", action="store_true", doc="Print only names."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="info",
        summary="Show the configuration and state of a stream.",
        run=info,
        arguments=(
            STREAM,
            argument(
                "--subjects",
                metavar="FILTER",
                default="",
                doc="Also count messages by subject, for matching subjects; `>` is all.",
            ),
            *CONNECTION,
        ),
    ),
    Verb(
        name="create",
        aliases=("add",),
        summary="Create a stream.",
        run=create,
        arguments=(
            argument(
                "stream",
                metavar="NAME",
                nargs="?",
                doc="Name of the stream, unless --config has it.",
            ),
            *SETTINGS,
            *CONNECTION,
        ),
    ),
    Verb(
        name="edit",
        summary="Edit a stream: show the changes, ask, and apply them.",
        run=edit,
        arguments=(STREAM, FORCE, *SETTINGS, *CONNECTION),
    ),
    Verb(
        name="purge",
        summary="Delete all or some messages of a stream.",
        run=purge,
        arguments=(
            STREAM,
            argument("--subject", metavar="SUBJECT", doc="Only messages on these subjects."),
            argument(
                "--keep", metavar="NUMBER", type=int, doc="Number of newest messages to keep."
            ),
            argument(
                "--seq",
                metavar="SEQUENCE",
                type=read_positive,
                doc="Only messages before this sequence.",
            ),
            FORCE,
            *CONNECTION,
        ),
    ),
    Verb(
        name="rm",
        aliases=("delete",),
        summary="Delete a stream and all its messages.",
        run=remove,
        arguments=(STREAM, FORCE, *CONNECTION),
    ),
    Verb(
        name="get",
        summary="Print one message of a stream.",
        run=get,
        arguments=(
            STREAM,
            argument(
                "seq",
                metavar="SEQUENCE",
                nargs="?",
                type=read_positive,
                doc="Sequence of the message; with --next-for, where to start.",
            ),
            argument("--last-for", metavar="SUBJECT", doc="The last message on a subject."),
            argument("--next-for", metavar="SUBJECT", doc="The next message on a subject."),
            argument("--raw", action="store_true", doc="Print only the payload."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="msg-rm",
        aliases=("rmm",),
        summary="Delete one message of a stream.",
        run=remove_message,
        arguments=(
            STREAM,
            SEQUENCE,
            argument("--erase", action="store_true", doc="Also overwrite its bytes."),
            FORCE,
            *CONNECTION,
        ),
    ),
    Verb(
        name="watch",
        summary="Show messages, rates and the lag of consumers, live.",
        run=watch_stream,
        arguments=(STREAM, *WATCH, *CONNECTION),
        endless=True,
    ),
    Verb(
        name="copy",
        aliases=("cp",),
        summary="Create a stream with the configuration of another one.",
        run=copy,
        arguments=(
            argument("source", metavar="SOURCE", doc=""),
            argument("stream", metavar="NAME", doc="Name of the new stream."),
            *SETTINGS,
            *CONNECTION,
        ),
    ),
    *paging.VERBS,
    *reports.VERBS,
    *backup.VERBS,
)
