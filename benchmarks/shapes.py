"""
The measured shapes of traffic, and their goals.

Message counts are chosen so that one run takes nats-server one or two seconds.
"""

from dataclasses import dataclass

from penstock.bench.report.ratios import Goal

QUICK_DIVISOR = 3


@dataclass(frozen=True)
class Shape:
    """A load, its number of messages, and the goals for its figures."""

    name: str
    goals: tuple[Goal, ...]
    program: str = ""
    """The load generator; empty leaves the server idle."""

    before_count: tuple[int, ...] = ()
    messages: int = 0
    after_count: tuple[int, ...] = ()
    turns: int = 1
    """The number of runs of each server in a round."""

    def arguments(self, *, quick: bool) -> list[str]:
        """Return the load generator's arguments after HOST and PORT."""
        messages = self.messages // QUICK_DIVISOR if quick else self.messages
        return [str(value) for value in (*self.before_count, messages, *self.after_count)]


def _rate(bound: float) -> Goal:
    return Goal("total/s", bound)


def _sids(distinct: bool) -> str:
    return "distinct sids" if distinct else "sid 1"


def _fan_out(
    publishers: int,
    subscribers: int,
    size: int,
    *goals: Goal,
    messages: int,
    subjects: int = 1,
    distinct: bool = False,
) -> Shape:
    many = f" over {subjects} subjects, wildcard" if subjects > 1 else ""
    sids = f", {_sids(distinct)}" if subscribers > 1 else ""
    queue, hold = 0, 1
    return Shape(
        name=f"{publishers} x {subscribers} x {size} B{many}{sids}",
        goals=goals,
        program="natsload",
        before_count=(publishers, subscribers),
        messages=messages,
        after_count=(size, subjects, queue, int(distinct), hold),
    )


def _mixed(goal: Goal, *, distinct: bool) -> Shape:
    return Shape(
        name=f"mixed, {_sids(distinct)}",
        goals=(goal,),
        program="mixload",
        before_count=(4, 16),
        messages=40_000,
        after_count=(int(distinct),),
    )


_FEWER_BYTES_RESIDENT = Goal("resident_mb", 1.0, "MB", "memory", counts="last")

SHAPES: tuple[Shape, ...] = (
    _fan_out(1, 10, 128, _rate(3.5), messages=400_000),
    _fan_out(1, 10, 128, _rate(2.2), messages=400_000, distinct=True),
    _fan_out(10, 10, 128, _rate(2.2), messages=500_000),
    _fan_out(10, 10, 128, _rate(2.0), messages=500_000, distinct=True),
    _fan_out(10, 100, 1000, _rate(1.3), messages=25_000),
    _fan_out(10, 100, 1000, _rate(1.2), messages=25_000, distinct=True),
    _fan_out(10, 1000, 1000, _rate(3.0), _FEWER_BYTES_RESIDENT, messages=1_500),
    _fan_out(10, 1000, 1000, _rate(1.5), _FEWER_BYTES_RESIDENT, messages=1_500, distinct=True),
    _fan_out(1, 1, 128, _rate(1.8), messages=2_000_000),
    _fan_out(1, 10, 128, _rate(1.8), messages=400_000, subjects=100),
    _fan_out(1, 10, 128, _rate(1.5), messages=400_000, subjects=100, distinct=True),
    _mixed(_rate(1.2), distinct=False),
    _mixed(_rate(1.2), distinct=True),
    Shape(
        name="publish only, nobody subscribed, 128 B",
        goals=(_rate(1.0),),
        program="natsload",
        before_count=(1, 0),
        messages=8_000_000,
        after_count=(128,),
    ),
    Shape(
        name="request/reply, 128 B",
        goals=(
            Goal("p50us", 1.0, "µs", "p50", counts="median"),
            Goal("p99us", 1.0, "µs", "p99", counts="median"),
        ),
        program="reqload",
        # A run falls into the scheduler's fast or slow way of waking threads, and stays in
        # it. The median of many short runs says more than one lucky run.
        messages=2_500,
        after_count=(128,),
        turns=3,
    ),
    Shape(
        name="idle",
        goals=(Goal("resident_mb", 45, "MB", "memory", absolute=True, counts="last"),),
    ),
)
