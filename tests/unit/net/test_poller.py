"""One contract for every way of learning which sockets are ready."""

import asyncio
import selectors
import socket
import threading

import pytest

from penstock.net import poller
from penstock.net.poller import READ, WRITE

KINDS = {
    "in the loop's own set": (poller.ServerLoop, poller.poller_for),
    "a set of its own": (asyncio.SelectorEventLoop, poller.EpollPoller),
    "any selector": (asyncio.SelectorEventLoop, poller.SelectorPoller),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request):
    return request.param


def run(kind, scenario):
    new_loop, make = kind
    near, far = socket.socketpair()
    near.setblocking(False)
    with asyncio.Runner(loop_factory=new_loop) as runner, near, far:

        async def main():
            events: asyncio.Queue[list[tuple[int, int]]] = asyncio.Queue()
            made = make(asyncio.get_running_loop(), events.put_nowait)
            async with asyncio.timeout(10):
                await scenario(made, events, near, far)
            made.close()

        runner.run(main())


def test_a_readable_socket_is_reported_while_it_is_watched(kind):
    async def scenario(made, events, near, far):
        made.register(near.fileno(), READ)
        far.send(b"x")

        fd, mask = (await events.get())[0]

        assert fd == near.fileno()
        assert mask & READ
        made.unregister(near.fileno())

    run(kind, scenario)


def test_a_socket_watched_for_nothing_is_not_reported_until_it_is_again(kind):
    async def scenario(made, events, near, far):
        made.register(near.fileno(), READ)
        made.modify(near.fileno(), 0)
        far.send(b"x")
        await asyncio.get_running_loop().run_in_executor(None, select_once, near)
        await asyncio.sleep(0)
        assert events.empty()

        made.modify(near.fileno(), READ | WRITE)

        assert (await events.get())[0][1] & (READ | WRITE) == READ | WRITE
        made.unregister(near.fileno())

    run(kind, scenario)


def select_once(sock):
    """Wait until the kernel has the byte, so that its silence is not merely early."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        assert selector.select(10)


def test_an_error_while_serving_does_not_end_the_loop(caplog):
    near, far = socket.socketpair()
    with asyncio.Runner(loop_factory=poller.ServerLoop) as runner, near, far:

        async def main():
            loop = asyncio.get_running_loop()
            served = asyncio.Event()

            def serve(events):
                near.recv(1)
                served.set()
                raise ValueError("a mistake")

            made = poller.poller_for(loop, serve)
            made.register(near.fileno(), READ)
            far.send(b"x")
            await asyncio.wait_for(served.wait(), 10)
            made.close()
            assert await asyncio.wait_for(loop.run_in_executor(None, int, "7"), 10) == 7

        runner.run(main())
    assert "internal error" in caplog.text


def test_two_servers_on_one_loop_each_get_their_own_sockets():
    ours, theirs = socket.socketpair()
    with asyncio.Runner(loop_factory=poller.ServerLoop) as runner, ours, theirs:

        async def main():
            loop = asyncio.get_running_loop()
            seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
            for name, sock in (("a", ours), ("b", theirs)):
                made = poller.poller_for(
                    loop, lambda events, n=name: [seen.put_nowait((n, fd)) for fd, _ in events]
                )
                made.register(sock.fileno(), WRITE)
            got = {await asyncio.wait_for(seen.get(), 10) for _ in range(2)}
            assert got == {("a", ours.fileno()), ("b", theirs.fileno())}
            loop.server_selector.servers.clear()

        runner.run(main())


def test_what_a_thread_has_done_goes_before_more_to_read():
    near, far = socket.socketpair()
    with asyncio.Runner(loop_factory=poller.ServerLoop) as runner, near, far:

        async def main():
            loop = asyncio.get_running_loop()
            seen = []
            served = asyncio.Event()

            def serve(events):
                seen.append("socket")
                served.set()

            made = poller.poller_for(loop, serve)
            made.register(near.fileno(), READ)
            far.send(b"x")
            select_once(near)
            thread = threading.Thread(
                target=loop.call_soon_threadsafe, args=(seen.append, "thread")
            )
            thread.start()
            thread.join()
            await asyncio.wait_for(served.wait(), 10)
            made.close()
            assert ["thread", "socket"] == seen[:2]

        runner.run(main())


ASKED = {
    "a callback that is asked for before": lambda loop, done: loop.call_later(0.01, done.set),
    "a callback that serving asks for": lambda loop, done: loop.call_soon(done.set),
    "a timer that serving sets": lambda loop, done: loop.call_later(0.01, done.set),
}


@pytest.mark.parametrize("name", ASKED)
def test_asyncio_has_its_turn_although_a_socket_is_always_ready(name):
    near, far = socket.socketpair()
    with asyncio.Runner(loop_factory=poller.ServerLoop) as runner, near, far:

        async def main():
            loop = asyncio.get_running_loop()
            done, start_s = asyncio.Event(), loop.time()
            served = 0

            def serve(events):
                nonlocal served
                served += 1
                if served == 3 and "before" not in name:
                    ASKED[name](loop, done)

            if "before" in name:
                ASKED[name](loop, done)
            made = poller.poller_for(loop, serve)
            made.register(near.fileno(), WRITE)
            await asyncio.wait_for(done.wait(), 10)
            made.close()
            assert served >= 3
            assert loop.time() - start_s < 5

        runner.run(main())


def test_ready_sockets_are_served_again_without_a_turn_of_asyncio():
    near, far = socket.socketpair()
    with asyncio.Runner(loop_factory=poller.ServerLoop) as runner, near, far:

        async def main():
            loop = asyncio.get_running_loop()
            served = asyncio.Event()
            turns = []

            def serve(events):
                near.recv(1)
                turns.append(len(seen))
                if len(turns) == 5:
                    served.set()
                else:
                    far.send(b"x")

            select, seen = loop.server_selector.select, []
            loop.server_selector.select = lambda timeout: seen.append(timeout) or select(timeout)
            made = poller.poller_for(loop, serve)
            made.register(near.fileno(), READ)
            far.send(b"x")
            await asyncio.wait_for(served.wait(), 10)
            made.close()
            # The first comes in the turn in which `wait_for` begins.
            assert len(set(turns[1:])) == 1

        runner.run(main())
