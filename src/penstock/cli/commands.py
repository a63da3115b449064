"""
Every command: where its code is, and its verbs.

Help, the reference, completion and man pages are made from this table. A command is
imported only when it runs, so that it does not slow down the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.cli.arguments import Verb


class Command(NamedTuple):
    """A command: its module, a summary in one line, and its verb if it has only one."""

    module: str
    summary: str
    verb: str = ""
    """Name of the verb in the module; without one, the module has a function `run`."""


COMMANDS = {
    "context": Command(
        "penstock.cli.contexts.contexts", "Name servers once, and use them by name."
    ),
    "serve": Command("penstock.cli.serve.serve", "Run a server."),
    "demo": Command(
        "penstock.cli.demo.demo",
        "Show everything on this machine: broker, event bus, Spark, report.",
        "DEMO",
    ),
    "pub": Command("penstock.cli.messages", "Publish messages.", "PUBLISH"),
    "sub": Command("penstock.cli.messages", "Print messages as they arrive.", "SUBSCRIBE"),
    "request": Command(
        "penstock.cli.messages", "Publish a request and print the replies.", "REQUEST"
    ),
    "reply": Command("penstock.cli.messages", "Answer requests.", "REPLY"),
    "stream": Command(
        "penstock.cli.stream.stream", "Create, show, edit, read, save and restore streams."
    ),
    "consumer": Command(
        "penstock.cli.consumer.consumer", "Create, show, edit, pause and pull from consumers."
    ),
    "kv": Command("penstock.cli.kv.kv", "Read and write buckets of keys and values."),
    "object": Command("penstock.cli.objects", "Store and read files of any size, in buckets."),
    "rtt": Command("penstock.cli.rtt", "Measure the time to the server and back.", "RTT"),
    "latency": Command(
        "penstock.cli.latency", "Measure how long messages are under way.", "LATENCY"
    ),
    "account": Command("penstock.cli.account", "Show who we are, and the limits of our account."),
    "server": Command("penstock.cli.server.server", "Check, list and control servers."),
    "top": Command("penstock.cli.server.top", "Show the busiest connections, live.", "TOP"),
    "events": Command("penstock.cli.events", "Print what servers report.", "EVENTS"),
    "doctor": Command("penstock.cli.doctor.doctor", "Find what is wrong here and there.", "DOCTOR"),
    "store": Command("penstock.cli.store", "Check and repair the files of a server."),
    "bench": Command("penstock.cli.bench", "Measure and compare servers, with a history."),
    "topics": Command("penstock.cli.topics", "List, plan, apply and check the topics of a bus."),
    "dlq": Command("penstock.cli.dlq", "List, show, replay and discard dead letters."),
    "pipeline": Command("penstock.cli.pipeline", "Run the ready pipelines on Spark."),
    "lake": Command("penstock.cli.lake", "Inspect a Parquet lake without Spark."),
    "config": Command("penstock.cli.config", "Explain the settings in effect."),
    "completion": Command(
        "penstock.cli.completion", "Print the completion of a shell.", "COMPLETION"
    ),
    "man": Command("penstock.cli.manpages", "Write the manual pages.", "MAN"),
    "reference": Command(
        "penstock.cli.reference.reference",
        "Print the reference of settings or commands.",
        "REFERENCE",
    ),
}

HELP_OPTIONS = ("-h", "-help", "--help")
VERSION = ("version", "-v", "-version", "--version")
EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
EXIT_CODES = {
    0: "It is done.",
    EXIT_FAILURE: "It could not be done, or a check found something wrong.",
    EXIT_USAGE: "The command line, a file or a variable that it names makes no sense.",
    EXIT_INTERRUPTED: "Ctrl-C stopped it. What runs until then, such as `sub`, ends with 0.",
}


def verbs_of(command: str) -> tuple[Verb, ...]:
    """Return the verbs of a command; none for one that takes the flags of nats-server."""
    entry = COMMANDS[command]
    module = importlib.import_module(entry.module)
    if entry.verb:
        return (getattr(module, entry.verb),)
    verbs: tuple[Verb, ...] = getattr(module, "VERBS", ())
    return verbs


def path_of(command: str, verb: Verb) -> str:
    """Return the words that run a verb, after `penstock`."""
    return command if COMMANDS[command].verb else f"{command} {verb.name}"
