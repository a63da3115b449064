"""
Error messages: one line about the error, and one with a hint.

The server only knows that a stream does not exist. We know how the user spelt it, and can
ask for the existing names.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.jetstream.keyvalue import STREAM_PREFIX as KV
from penstock.client.jetstream.keyvalue import KeyNotFound, KeyValue
from penstock.client.jetstream.objectstore import STREAM_PREFIX as OBJECTS
from penstock.errors import (
    ConnectFailed,
    JetStreamError,
    NoResponders,
    PenstockError,
    PermissionDenied,
    RequestTimeout,
)
from penstock.protocol import errorcodes
from penstock.protocol.suggestions import nearest

if TYPE_CHECKING:
    from penstock.cli.context import Context

KEYS_COMPARED_MAX = 1000

CALL_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")
START = ("start one with `penstock serve -js`", "name one with --server", "use --context")
LOGIN = ("--user and --password", "--token", "--creds", "--nkey", "--context")
TRUST = "name the certificate of its authority with --tlsca"
SHOW_CERTIFICATE = "does it want a certificate of ours? --tlscert and --tlskey"
NO_TLS, BROKEN = "does not offer", "broke during the handshake"
HINT = re.compile(r"(?:;|(?<=\?)) hint: ")
OTHER_NAME = (62, 64)
"""The codes of OpenSSL for a certificate with another host name or address."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND_LINE = re.compile(r"penstock [^;`,]*")
"""A command in a hint has options of its own."""
HINTS = {
    error.err_code: hint
    for error, hint in {
        errorcodes.CONSUMER_NAME_EXIST: "penstock consumer edit changes an existing consumer",
        errorcodes.NOT_ENABLED_FOR_ACCOUNT: "JetStream is not enabled for this account",
        errorcodes.STREAM_NAME_EXIST: "penstock stream edit changes an existing stream",
        errorcodes.STREAM_NAME_EXIST_RESTORE_FAILED: "penstock stream rm deletes the existing one",
        errorcodes.NOT_ENABLED: "start the server with JetStream: penstock serve -js",
        errorcodes.CONSUMER_ALREADY_EXISTS: "penstock consumer edit changes an existing consumer",
        errorcodes.CONSUMER_DOES_NOT_EXIST: "penstock consumer create creates it",
    }.items()
}
"""Hints by the API's error code."""


class Complaint(NamedTuple):
    """An error as the user sees it."""

    text: str
    hint: str = ""

    def __str__(self) -> str:
        first = f"penstock: {self.text}"
        return f"{first}\nhint: {self.hint}" if self.hint else first

    def fitting(self, options: Collection[str]) -> Complaint:
        """Return the complaint without a hint that names an option this command does not have."""
        return self if is_fitting(self.hint, options) else self._replace(hint="")


def is_fitting(hint: str, options: Collection[str]) -> bool:
    """Return whether a command has the options that a hint names, except those of commands."""
    own = COMMAND_LINE.sub("", hint)
    return all(option in options for option in OPTION.findall(own))


def complaint_of(error: PenstockError, options: Collection[str]) -> Complaint:
    """Split an error into text and hint; some errors carry their hint in the text."""
    text, *hints = HINT.split(str(error), maxsplit=1)
    hint = "".join(hints)
    if isinstance(error, ConnectFailed):
        text = CALL_FAILED.sub(lambda match: os.strerror(int(match[1])).lower(), text)
        hint = hint or _connect_hint(error, options)
    elif not hint and isinstance(error, RequestTimeout):
        hint = "wait longer with --timeout"
    elif not hint and isinstance(error, NoResponders):
        hint = "is the subject right, and is somebody subscribed?"
    elif not hint and isinstance(error, JetStreamError):
        hint = HINTS.get(error.err_code, "")
    return Complaint(text, hint).fitting(options)


def _connect_hint(error: ConnectFailed, options: Collection[str]) -> str:
    """Tell a missing server from one that refuses us, and from one that we do not trust."""
    for cause in error.causes:
        if isinstance(cause, PermissionDenied):
            return _any_of("log in with ", LOGIN, options)
        if isinstance(cause, ssl.SSLCertVerificationError):
            other = cause.verify_code in OTHER_NAME
            return "the certificate is for another name of the server" if other else TRUST
        if isinstance(cause, ssl.SSLError):
            return SHOW_CERTIFICATE
    if NO_TLS in str(error):
        return "nats:// instead of tls://, and no certificates, if that is safe here"
    return SHOW_CERTIFICATE if BROKEN in str(error) else _any_of("", START, options)


def _any_of(start: str, ways: Sequence[str], options: Collection[str]) -> str:
    """Return the ways that this command has."""
    fitting = [way for way in ways if is_fitting(way, options)]
    return start + " or ".join(filter(None, (", ".join(fitting[:-1]), *fitting[-1:])))


async def explain(error: PenstockError, context: Context, options: Collection[str]) -> Complaint:
    """Explain an error of this command line, with the closest existing name."""
    if isinstance(error, KeyNotFound):
        return Complaint(str(error), await _meant_key(context))
    if not isinstance(error, JetStreamError):
        return complaint_of(error, options)
    arguments = vars(context.arguments)
    stream, bucket = arguments.get("stream", ""), arguments.get("bucket", "")
    if error.err_code == errorcodes.STREAM_NOT_FOUND.err_code and bucket:
        prefix, command = (KV, "kv") if context.command.startswith("kv ") else (OBJECTS, "object")
        names = await bucket_names(context, prefix)
        return not_found("bucket", bucket, names, command=f"penstock {command}")
    if error.err_code == errorcodes.STREAM_NOT_FOUND.err_code and stream:
        names = await context.js.streams.names()
        return not_found("stream", stream, names, command="penstock stream")
    if error.err_code == errorcodes.CONSUMER_NOT_FOUND.err_code and arguments.get("consumer"):
        names = await context.js.consumers.names(stream)
        return not_found("consumer", arguments["consumer"], names, command="penstock consumer")
    if error.err_code == errorcodes.NO_MESSAGE_FOUND.err_code and stream:
        return Complaint(f"no such message in stream `{stream}`", f"penstock stream info {stream}")
    if error.err_code == errorcodes.STREAM_SUBJECT_OVERLAP.err_code and arguments.get("subjects"):
        return await _overlap(error, context, options)
    return complaint_of(error, options)


async def _overlap(error: JetStreamError, context: Context, options: Collection[str]) -> Complaint:
    """Name the stream that already has the subjects."""
    for subject in context.arguments.subjects:
        names = await context.js.streams.names(subject=subject)
        others = [f"`{name}`" for name in names if name != context.arguments.stream]
        if others:
            return Complaint(str(error), f"`{subject}` is stored by stream {', '.join(others)}")
    return complaint_of(error, options)


async def bucket_names(context: Context, prefix: str) -> list[str]:
    """Return the names of all buckets whose streams start like this."""
    names = await context.js.streams.names()
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


async def _meant_key(context: Context) -> str:
    """Suggest the closest key, if the bucket is small enough to list."""
    bucket = await KeyValue.open(context.js, context.arguments.bucket)
    if (await bucket.info())["state"].get("num_subjects", 0) > KEYS_COMPARED_MAX:
        return ""
    meant = nearest(context.arguments.key, await bucket.keys())
    return f"did you mean `{meant}`?" if meant else ""


def not_found(what: str, name: str, names: Iterable[str], *, command: str) -> Complaint:
    """Report that something does not exist, and suggest the closest name."""
    by_lower = {each.lower(): each for each in names}
    meant = nearest(name.lower(), by_lower)
    hint = f"{command} ls" if by_lower else f"{command} create"
    if meant:
        hint = f"did you mean `{by_lower[meant]}`?"
    return Complaint(f"no {what} `{name}`", hint)
