"""
What went wrong, in one line, and what to try next.

The server knows only that a stream is not there; we know how it was spelt, and can
ask which names there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.jetstream.keyvalue import STREAM_PREFIX, KeyNotFound, KeyValue
from penstock.config.file.flags import nearest
from penstock.errors import (
    ConnectFailed,
    JetStreamError,
    NoResponders,
    PenstockError,
    RequestTimeout,
)

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
    10013: "penstock consumer edit changes a consumer that exists",
    10039: "JetStream is not enabled for this account",
    10058: "penstock stream edit changes a stream that exists",
    10076: "start the server with JetStream: penstock serve -js",
    10148: "penstock consumer edit changes a consumer that exists",
    10149: "penstock consumer create makes one",
}
"""What to try, by the error code of the API."""


class Complaint(NamedTuple):
    """An error as a person sees it."""

    text: str
    hint: str = ""

    def __str__(self) -> str:
        first = f"penstock: {self.text}"
        return f"{first}\nhint: {self.hint}" if self.hint else first


def complaint_of(error: PenstockError) -> Complaint:
    """Return what an error says by itself; some carry their hint in their text."""
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
    """Tell a server that is not there from one that will not have us."""
    if "authorization" in text.lower():
        return Complaint(text, "say who you are: --user and --password, --token, --creds or --nkey")
    text = CALL_FAILED.sub(lambda match: os.strerror(int(match[1])).lower(), text)
    return Complaint(text, hint)


async def explain(error: PenstockError, context: Context) -> Complaint:
    """Return what an error means for this command line, with the name that was meant."""
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
    """Say which stream has the subjects already."""
    for subject in context.arguments.subjects:
        names = await context.js.streams.names(subject=subject)
        others = [f"`{name}`" for name in names if name != context.arguments.stream]
        if others:
            return Complaint(str(error), f"`{subject}` is stored by stream {', '.join(others)}")
    return complaint_of(error)


async def bucket_names(context: Context) -> list[str]:
    """Return the names of all buckets."""
    names = await context.js.streams.names(subject="$KV.>")
    return [name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)]


async def _meant_key(context: Context) -> str:
    """Return a hint at the key that was probably meant, where there are not too many."""
    bucket = await KeyValue.open(context.js, context.arguments.bucket)
    if (await bucket.info())["state"].get("num_subjects", 0) > KEYS_COMPARED_MAX:
        return ""
    meant = nearest(context.arguments.key, await bucket.keys())
    return f"did you mean `{meant}`?" if meant else ""


def not_found(what: str, name: str, names: Iterable[str], *, command: str) -> Complaint:
    """Say that something is not there, and what was probably meant."""
    by_lower = {each.lower(): each for each in names}
    meant = nearest(name.lower(), by_lower)
    hint = f"{command} ls" if by_lower else f"{command} create"
    if meant:
        hint = f"did you mean `{by_lower[meant]}`?"
    return Complaint(f"no {what} `{name}`", hint)
