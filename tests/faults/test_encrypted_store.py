"""A server with `jetstream.key`: what lies on its disk, and what opens it again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import PENSTOCK, ServerProcess

from penstock.client import connect

SECRET = b"a payload that nobody else may read"
SUBJECT = "orders.of.somebody"


def server(store: Path, *settings: str) -> ServerProcess:
    return ServerProcess(PENSTOCK, f"jetstream {{ store_dir: '{store}', {', '.join(settings)} }}")


async def publish(url: str, *, compression: str = "none") -> None:
    """Make a stream with a consumer, and enough messages for some segments."""
    async with await connect(url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("S", subjects=["orders.>"], compression=compression)
        await jetstream.consumers.create("S", durable_name="C", filter_subject=SUBJECT)
        for _ in range(10):
            await jetstream.publish(SUBJECT, SECRET * 4000)


async def stored(url: str) -> int:
    """Return how many of the messages are there, each as it was published."""
    async with await connect(url) as client:
        stream = client.jetstream().streams
        found = [await stream.get("S", seq=sequence) for sequence in range(1, 11)]
        return sum(message.payload == SECRET * 4000 for message in found)


def leaks(store: Path) -> list[str]:
    """Return the files in which something of the stream can be read."""
    files = [path for path in store.rglob("*") if path.is_file()]
    assert files
    words = (SECRET, SUBJECT.encode(), b"orders", b"durable")
    return [str(path) for path in files if any(word in path.read_bytes() for word in words)]


@pytest.mark.parametrize("cipher", ["chacha", "aes"])
@pytest.mark.parametrize("compression", ["none", "s2"])
def test_nothing_but_names_can_be_read_on_the_disk(
    tmp_path: Path, cipher: str, compression: str
) -> None:
    with server(tmp_path, "key: one", f"cipher: {cipher}") as running:
        asyncio.run(publish(running.url, compression=compression))
    assert leaks(tmp_path) == []

    with server(tmp_path, "key: one", f"cipher: {cipher}") as running:
        assert asyncio.run(stored(running.url)) == 10


def test_a_store_gets_a_key_another_key_and_another_cipher(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        asyncio.run(publish(running.url))
    assert leaks(tmp_path) != []
    for settings in (["key: one"], ["key: two", "prev_key: one"], ["key: two", "cipher: aes"]):
        with server(tmp_path, *settings) as running:
            assert asyncio.run(stored(running.url)) == 10
        assert leaks(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("key: two", "is of another `jetstream.key`"),
        ("key: two, prev_key: three", "neither `key` nor `prev_key` is right"),
        ("max_mem: 1GB", "is encrypted; hint: set `jetstream.key`"),
    ],
)
def test_without_its_key_a_store_is_left_alone(tmp_path: Path, settings: str, words: str) -> None:
    store = tmp_path / "store"
    with server(store, "key: one") as running:
        asyncio.run(publish(running.url))
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    config = tmp_path / "server.conf"
    config.write_text(f"port: -1\njetstream {{ store_dir: '{store}', {settings} }}")

    started = subprocess.run(
        [*PENSTOCK.command, "-c", str(config)], capture_output=True, text=True, timeout=60
    )

    assert started.returncode == 1
    assert words in started.stderr
    before = {path: content for path, content in before.items() if path.name != "LOCK"}
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_store_is_checked_with_its_key(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with server(store, "key: one") as running:
        asyncio.run(publish(running.url))
    config = tmp_path / "server.conf"
    config.write_text(f"jetstream {{ store_dir: '{store}', key: $KEY }}")
    check = [sys.executable, "-m", "penstock", "store", "check", str(store)]

    def checked(*flags: str, **environ: str) -> tuple[int, str]:
        done = subprocess.run(
            [*check, *flags], capture_output=True, text=True, timeout=60, env=environ
        )
        return done.returncode, done.stdout + done.stderr

    assert (0, True) == _sound(checked("-c", str(config), KEY="one"))
    assert (0, True) == _sound(checked(PENSTOCK__JETSTREAM__KEY="one"))
    assert "is of another `jetstream.key`" in checked("-c", str(config), KEY="two")[1]
    assert "hint: name the server's configuration with `-c`" in checked()[1]
    (segment,) = store.rglob("*1.seg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    code, text = checked("-c", str(config), KEY="one")
    assert code == 1
    assert "are damaged" in text


def _sound(outcome: tuple[int, str]) -> tuple[int, bool]:
    code, text = outcome
    return code, "Everything checks out." in text


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['cryptography.hazmat.primitives.asymmetric'] = None\n"
        "from penstock.config.jetstream import JetStreamConfig\n"
        "JetStreamConfig(store_dir='x', key='y')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )

    assert "pip install 'penstock[security]'" in done.stderr
