"""The works of the JetStream benchmark, and the goals for each."""

from dataclasses import dataclass

SUBJECTS = 1_000_000


@dataclass(frozen=True)
class Load:
    """The arguments of `jsload`: mode, number and size of messages, and the number in flight."""

    mode: str
    messages: int
    size: int = 128
    window: int = 1000
    storage: str = "file"
    subjects: int = 1

    def arguments(self, divisor: int = 1) -> list[str]:
        """Return the arguments of the load generator after HOST and PORT."""
        subjects = max(self.subjects // divisor, 1)
        values = (self.messages // divisor, self.size, self.window, self.storage, subjects)
        return [self.mode, *map(str, values)]


@dataclass(frozen=True)
class Work:
    """One row of the table."""

    name: str
    load: Load
    bound: float
    """The minimum of our rate divided by nats-server's."""
    before: tuple[Load, ...] = ()
    """Loads that run first and are not measured."""
    our_sync: str = ""
    their_sync: str = ""
    """`sync_interval`; empty leaves the default, which for us is to sync before each ack."""
    their_divisor: int = 1
    """Divisor of the number of messages for nats-server, where it would take minutes."""


_PUBLISH = Load("pub", 300_000)
_PUT = Load("put", SUBJECTS, subjects=SUBJECTS)

WORKS: tuple[Work, ...] = (
    Work("publish 128 B, ours synced", _PUBLISH, 1.5),
    Work("publish 128 B, theirs sync always", _PUBLISH, 20, their_sync="always", their_divisor=100),
    Work("publish 128 B, memory", Load("pub", 300_000, storage="memory"), 1.5),
    Work("publish 1000 B, ours synced", Load("pub", 200_000, 1000), 1.2),
    Work(
        "publish one at a time, sync interval",
        Load("pub", 20_000, window=1),
        1.0,
        our_sync='"2m"',
        their_sync='"2m"',
    ),
    Work("pull 500, explicit acks", Load("pull", 300_000, window=500), 1.5, before=(_PUBLISH,)),
    Work("put, 1 M subjects", _PUT, 1.0),
    Work(
        "get last, 1 M subjects",
        Load("get", 100_000, window=100, subjects=SUBJECTS),
        1.0,
        before=(_PUT,),
    ),
    Work(
        "watch one, 1 M subjects",
        Load("watch", 1_000, window=1, subjects=SUBJECTS),
        1.0,
        before=(_PUT,),
    ),
)
