"""Check a stream's other files: its configuration, and its consumers."""

from __future__ import annotations

from penstock.errors import StoreError
from penstock.jetstream.consumers.consumerfiles import read_meta as read_consumer
from penstock.jetstream.consumers.consumerlog import foreign_logs, missing_log, read_states
from penstock.jetstream.files.streamfiles import (
    MESSAGES,
    RESTORING,
    missing_consumers,
    read_meta,
    salt_of,
    source_faults,
)
from penstock.jetstream.store.file.compression import transparent
from penstock.jetstream.store.file.disk import Disk
from penstock.jetstream.store.file.recovery import load, report_empty


def check_stream(disk: Disk, directory: str) -> list[str]:
    """Return the faults of a stream's directory, in words; `check` reads the messages."""
    if RESTORING in disk.names(directory):
        return [f"`{directory}` was not restored completely: the next start removes it"]
    return [*_meta_faults(disk, directory), *_consumer_faults(disk, f"{directory}/consumers")]


def _meta_faults(disk: Disk, directory: str) -> list[str]:
    try:
        config, _ = read_meta(disk, directory)
    except StoreError as error:
        return [str(error)]
    name = config.name
    messages = f"{directory}/{MESSAGES}"
    try:
        found = load(transparent(disk), messages, salt_of(name))
    except StoreError as error:
        return [str(error)]
    if found.salt != salt_of(name):
        return [f"`{messages}` has the messages of another stream"]
    report_empty(disk, messages, found)
    last_sequence = max((each.block.last_sequence for each in found.segments), default=0)
    faults = source_faults(disk, directory, config, last_sequence)
    return found.missing + missing_consumers(disk, directory) + faults


def _consumer_faults(disk: Disk, directory: str) -> list[str]:
    faults = foreign_logs(disk, directory) + missing_log(disk, directory)
    # A consumer's name has no dot, so a name with one is a log.
    names = {name for name in disk.names(directory) if "." not in name}
    for name in sorted(names):
        try:
            if read_consumer(disk, directory, name) is None:
                faults.append(f"`{directory}/{name}` has no configuration")
        except StoreError as error:
            faults.append(str(error))
    for name in sorted(read_states(disk, directory).keys() - names):
        faults.append(f"`{directory}`: consumer `{name}` has a state, and no configuration")
    return faults
