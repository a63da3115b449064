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
from penstock.protocol import wellknown
from penstock.protocol.suggestions import nearest

if TYPE_CHECKING:
    from penstock.cli.context import Context

KEYS_COMPARED_MAX = 1000

CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037
STREAM_NOT_FOUND = 10059
SUBJECTS_OVERLAP = 10065
CALL_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")
START_ONE = "start one with `penstock serve -js`, or name one with --server"
HINTS = {
    10013: "penstock consumer edit changes an existing consumer",
    10039: "JetStream is not enabled for this account",
    10058: "penstock stream edit changes an existing stream",
    10076: "start the server with JetStream: penstock serve -js",
    10148: "penstock consumer edit changes an existing consumer",
    10149: "penstock consumer create creates it",
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
    if error.err_code == STREAM_NOT_FOUND and bucket:
        return not_found("bucket", bucket, await bucket_names(context), command="penstock kv")
    if error.err_code == STREAM_NOT_FOUND and stream:
        names = await context.js.streams.names()
        return not_found("stream", stream, names, command="penstock stream")
    if error.err_code == CONSUMER_NOT_FOUND and arguments.get("consumer"):
        names = await context.js.consumers.names(stream)
        return not_found("consumer", arguments["consumer"], names, command="penstock consumer")
    if error.err_code == MESSAGE_NOT_FOUND and stream:
        return Complaint(f"no such message in stream `{stream}`", f"penstock stream info {stream}")
    if error.err_code == SUBJECTS_OVERLAP and arguments.get("subjects"):
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
