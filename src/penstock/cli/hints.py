"""
Error messages: one line about the error, and one with a hint.

The server only knows that a stream does not exist. We know how the user spelt it, and can
ask for the existing names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.jetstream.keyvalue import STREAM_PREFIX, KeyNotFound, KeyValue
from penstock.errors import (
    ConnectFailed,
    JetStreamError,
    NoResponders,
    PenstockError,
    RequestTimeout,
)
from penstock.protocol import errorcodes, wellknown
from penstock.protocol.suggestions import nearest

if TYPE_CHECKING:
    from penstock.cli.context import Context

KEYS_COMPARED_MAX = 1000

CALL_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")
START_ONE = "start one with `penstock serve -js`, or name one with --server"
HINTS = {
    error.err_code: hint
    for error, hint in {
        errorcodes.CONSUMER_NAME_EXIST: "penstock consumer edit changes an existing consumer",
        errorcodes.NOT_ENABLED_FOR_ACCOUNT: "JetStream is not enabled for this account",
        errorcodes.STREAM_NAME_EXIST: "penstock stream edit changes an existing stream",
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


def complaint_of(error: PenstockError) -> Complaint:
    """Split an error into text and hint; some errors carry their hint in the text."""
    text, _, hint = str(error).partition("; hint: ")
    if isinstance(error, ConnectFailed):
        return _unreachable(text, hint or START_ONE)
    if hint:
        return Complaint(text, hint)
    if isinstance(error, RequestTimeout):
        return Complaint(text, "wait longer with --timeout")
    if isinstance(error, NoResponders):
        return Complaint(text, "is the subject right, and is somebody subscribed?")
    if isinstance(error, JetStreamError):
        return Complaint(text, HINTS.get(error.err_code, ""))
    return Complaint(text)


def _unreachable(text: str, hint: str) -> Complaint:
    """Tell a missing server from one that refuses us."""
    if "authorization" in text.lower():
        return Complaint(text, "log in with --user and --password, --token, --creds or --nkey")
    text = CALL_FAILED.sub(lambda match: os.strerror(int(match[1])).lower(), text)
    return Complaint(text, hint)


async def explain(error: PenstockError, context: Context) -> Complaint:
    """Explain an error of this command line, with the closest existing name."""
    if isinstance(error, KeyNotFound):
        return Complaint(str(error), await _meant_key(context))
    if not isinstance(error, JetStreamError):
        return complaint_of(error)
    arguments = vars(context.arguments)
    stream, bucket = arguments.get("stream", ""), arguments.get("bucket", "")
    if error.err_code == errorcodes.STREAM_NOT_FOUND.err_code and bucket:
        return not_found("bucket", bucket, await bucket_names(context), command="penstock kv")
    if error.err_code == errorcodes.STREAM_NOT_FOUND.err_code and stream:
        names = await context.js.streams.names()
        return not_found("stream", stream, names, command="penstock stream")
    if error.err_code == errorcodes.CONSUMER_NOT_FOUND.err_code and arguments.get("consumer"):
        names = await context.js.consumers.names(stream)
        return not_found("consumer", arguments["consumer"], names, command="penstock consumer")
    if error.err_code == errorcodes.NO_MESSAGE_FOUND.err_code and stream:
        return Complaint(f"no such message in stream `{stream}`", f"penstock stream info {stream}")
    if error.err_code == errorcodes.STREAM_SUBJECT_OVERLAP.err_code and arguments.get("subjects"):
        return await _overlap(error, context)
    return complaint_of(error)


async def _overlap(error: JetStreamError, context: Context) -> Complaint:
    """Name the stream that already has the subjects."""
    for subject in context.arguments.subjects:
        names = await context.js.streams.names(subject=subject)
        others = [f"`{name}`" for name in names if name != context.arguments.stream]
        if others:
            return Complaint(str(error), f"`{subject}` is stored by stream {', '.join(others)}")
    return complaint_of(error)


async def bucket_names(context: Context) -> list[str]:
    """Return the names of all buckets."""
    names = await context.js.streams.names(subject=f"{wellknown.KEY_VALUE}>")
    return [name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)]


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
