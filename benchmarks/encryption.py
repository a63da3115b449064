"""
Measure what `jetstream.key` costs: our server with each cipher beside itself without.

They take turns on the same work, each time with a new process and an empty store, and the best
round of each counts. Run it with `python -m benchmarks.encryption` on a quiet machine.
"""

import sys
import time
from collections.abc import Sequence

from benchmarks import loads
from benchmarks.command import begin, chosen, command_line, program
from benchmarks.jetstream import run
from benchmarks.jsworks import Load, Work
from penstock.bench.report import machine
from penstock.net.process import Program
from penstock.protocol.tables import markdown

PLAIN, CIPHERS = "plain", ("chacha", "aes")
RATIO_MIN = 0.75
"""The rate that encryption has to leave."""

PUBLISH = Load("pub", 300_000)
WORKS = (
    Work("publish 128 B", PUBLISH, RATIO_MIN),
    Work("publish 1000 B", Load("pub", 200_000, 1000), RATIO_MIN),
    Work("publish one at a time", Load("pub", 5_000, window=1), RATIO_MIN),
    Work("pull 500, explicit acks", Load("pull", 300_000, window=500), RATIO_MIN, (PUBLISH,)),
    Work(
        "get last, 100,000 subjects",
        Load("get", 50_000, window=100, subjects=100_000),
        RATIO_MIN,
        (Load("put", 100_000, subjects=100_000),),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a ratio misses its bound."""
    parser = command_line(
        "benchmarks.encryption", __doc__, quick="run a fifth of the messages", only="works"
    )
    options = begin(parser, arguments)
    loads.build()
    print(f"{time.strftime('%Y-%m-%d %H:%M %Z')}, {machine.describe()}\n")
    programs = [program(PLAIN, "penstock serve"), *map(_encrypting, CIPHERS)]
    rows = []
    met = True
    for work in chosen(WORKS, options):
        rates = dict.fromkeys((PLAIN, *CIPHERS), 0.0)
        for _ in range(options.rounds):
            for each in programs:
                rate = run(each, work, quick=options.quick)["msgs/s"]
                rates[each.name] = max(rates[each.name], rate)
                print(f"{work.name}: {each.name} {rate:,.0f}/s", file=sys.stderr, flush=True)
        ratios = [rates[cipher] / rates[PLAIN] for cipher in CIPHERS]
        met = met and min(ratios) >= work.bound
        shown = [f"{rate:,.0f}/s" for rate in rates.values()]
        rows.append([work.name, *shown, *(f"{ratio:.2f}x" for ratio in ratios)])
    print(markdown(["work", PLAIN, *CIPHERS, *(f"{cipher} ratio" for cipher in CIPHERS)], rows))
    return 0 if met else 1


def _encrypting(cipher: str) -> Program:
    settings = {"PENSTOCK__JETSTREAM__KEY": "secret", "PENSTOCK__JETSTREAM__CIPHER": cipher}
    return Program(cipher, program(cipher, "penstock serve").command, settings)


if __name__ == "__main__":
    sys.exit(main())
