"""
Fuzz the compiled twins under the address and undefined-behaviour sanitizers.

    python -m tests.fuzz.sanitized [--seconds 30] [--seed 0]

Builds `hot/native/*.c` with them in a temporary directory, then runs the corpus and
random mutations of it through both twins, in a Python that has the sanitizer's
library preloaded. A finding, or a difference between the twins, is a failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "penstock" / "hot" / "native").glob("*.c"))
FLAGS = [
    *["-O1", "-g", "-fPIC", "-shared", "-fno-omit-frame-pointer"],
    *["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    *["-Wall", "-Wextra", "-Wconversion", "-Werror"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the compiled twin under sanitizers.")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--library", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        fuzz(load(arguments.library), arguments.seconds, arguments.seed)
        return
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "_speedups.abi3.so"
        compiler = find_compiler()
        build(compiler, library)
        sys.exit(run(compiler, library, arguments.seconds, arguments.seed))


def find_compiler() -> str:
    for name in filter(None, [os.environ.get("CC"), "gcc", "cc", "clang"]):
        if path := shutil.which(name):
            return path
    sys.exit("There is no C compiler here, so nothing was fuzzed.\nhint: install gcc, or set CC.")


def build(compiler: str, library: Path) -> None:
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        sys.exit(f"`{include}/Python.h` is missing, so nothing was fuzzed.\nhint: python3-dev.")
    # System headers: the warnings are for our code, not for Python's.
    command = [compiler, *FLAGS, *shared_runtime(compiler), "-isystem", include]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(library)], check=True)


def is_clang(compiler: str) -> bool:
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    return "clang" in version.stdout


def shared_runtime(compiler: str) -> list[str]:
    """GCC links the sanitizers as shared libraries by itself; Clang has to be told."""
    return ["-shared-libasan"] if is_clang(compiler) else []


def runtime_libraries(compiler: str) -> list[str]:
    """Return what has to be in the process before Python is, since Python itself is not ours."""
    names = ["libasan.so", "libubsan.so"]
    if is_clang(compiler):
        names = [f"libclang_rt.asan-{os.uname().machine}.so"]
    libraries = []
    for name in names:
        command = [compiler, f"-print-file-name={name}"]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        if not Path(found).is_absolute():
            sys.exit(f"{compiler} has no `{name}`, so nothing was fuzzed.\nhint: install it.")
        libraries.append(str(Path(found).resolve()))
    return libraries


def run(compiler: str, library: Path, seconds: float, seed: int) -> int:
    """Run this script again, with the sanitizers loaded; return its exit status."""
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtime_libraries(compiler)),
        # Python's own allocator would hide an overrun inside its arenas.
        "PYTHONMALLOC": "malloc",
        # Python leaves memory to the operating system when it exits.
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    command = [sys.executable, "-m", "tests.fuzz.sanitized", "--library", str(library)]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    return subprocess.run(command, env=environment).returncode


def load(library: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock.hot._speedups", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fuzz(compiled: ModuleType, seconds: float, seed: int) -> None:
    """Compare the twins on the corpus, then on mutations until the time is up."""
    from tests.fuzz import answers, consuming, deliveries, fanout, records, twins

    import penstock.hot.answers
    import penstock.hot.consuming
    import penstock.hot.deliveries
    import penstock.hot.fanout
    import penstock.hot.records
    import penstock.hot.wire

    rng = random.Random(seed)
    corpus = [path.read_bytes() for path in twins.CORPUS]
    kinds: list[tuple[ModuleType, Callable[[ModuleType, Any], object], Iterator[Any]]] = [
        (penstock.hot.wire, twins.outcomes, itertools.chain(corpus, twins.mutations(seed))),
        (penstock.hot.wire, twins.pieces, iter(lambda: twins.broken_publishes(rng), None)),
        (penstock.hot.deliveries, deliveries.outcomes, deliveries.streams(seed)),
        (penstock.hot.answers, answers.outcomes, answers.examples(seed)),
        (penstock.hot.consuming, consuming.outcomes, consuming.examples(seed)),
        (penstock.hot.records, records.outcomes, records.examples(seed)),
        (penstock.hot.fanout, fanout.outcomes, fanout.examples(seed)),
    ]
    end_s = time.monotonic() + seconds
    for count in itertools.count():
        if count >= len(corpus) and time.monotonic() > end_s:
            break
        for reference, outcomes, examples in kinds:
            example = next(examples)
            if outcomes(reference, example) != outcomes(compiled, example):
                sys.exit(f"The twins differ (seed {seed}) on:\n{example!r}")
    print(f"{count} inputs of each kind, seed {seed}: no finding, no difference.")


if __name__ == "__main__":
    main()
