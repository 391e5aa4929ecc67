"""A client that stops reading is given up, and only that one."""

import asyncio
from collections.abc import Coroutine

import pytest

from app.asgi import Message, PatientSend
from tests.support.clock import ClockLoop
from tests.support.running import start

PIECE: Message = {"type": "http.response.body", "body": b"piece", "more_body": True}


def run(work: Coroutine[object, object, None]) -> None:
    """Run to the end, on a clock of its own."""
    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        runner.run(work)


def now() -> float:
    """Seconds by that clock."""
    return asyncio.get_running_loop().time()


async def takes_all(_message: Message) -> None:
    """A client that reads."""


async def takes_nothing(_message: Message) -> None:
    """A client that does not."""
    await asyncio.Event().wait()


def test_a_client_that_takes_nothing_is_given_up_when_its_patience_ends() -> None:
    """The send that waited returns, later ones do at once, and the task goes on as if nobody had cancelled it."""

    async def work() -> None:
        told: list[float] = []
        send = PatientSend(takes_nothing, 60.0, lambda: told.append(now()))
        await send(PIECE)
        assert send.stalled is True
        assert told == [pytest.approx(60.0)]
        await send(PIECE)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert len(told) == 1

    run(work())


def test_a_cancellation_at_the_same_moment_goes_on() -> None:
    """The server that ends a handler must learn that it ended by it."""

    async def work() -> None:
        def cut() -> None:
            task.cancel()

        async def serve() -> None:
            send = PatientSend(takes_nothing, 60.0, cut)
            await send(PIECE)

        task = start(serve())
        await asyncio.wait({task})
        assert task.cancelled()

    run(work())


def test_silence_of_the_engine_is_not_the_clients() -> None:
    """Between two messages any time may pass; what counts is how long one message waits for its reader."""

    async def work() -> None:
        reads = True

        async def client(message: Message) -> None:
            await (takes_all if reads else takes_nothing)(message)

        send = PatientSend(client, 60.0)
        for _ in range(5):
            await send(PIECE)
            await asyncio.sleep(1000.0)
        reads = False
        began = now()
        await send(PIECE)
        assert send.stalled is True
        assert 60.0 <= now() - began < 60.1

    run(work())


def test_a_client_that_takes_a_little_now_and_then_is_kept() -> None:
    """Each message begins the time anew."""

    async def work() -> None:
        async def slow(_message: Message) -> None:
            await asyncio.sleep(59.0)

        send = PatientSend(slow, 60.0)
        for _ in range(10):
            await send(PIECE)
        assert send.stalled is False
        assert now() == pytest.approx(590.0)
        send.close()

    run(work())


def test_closed_it_watches_nobody() -> None:
    """The timer is gone: a task that lives on is not cancelled by the answer that it gave before."""

    async def work() -> None:
        send = PatientSend(takes_all, 60.0)
        await send(PIECE)
        send.close()
        await asyncio.sleep(1000.0)
        assert not send.stalled

    run(work())


def test_the_task_that_sends_is_the_one_that_goes_on() -> None:
    """An application inside the engine may send from a task of its own; the request's task is left alone."""

    async def work() -> None:
        send = PatientSend(takes_nothing, 60.0)
        async with asyncio.TaskGroup() as group:
            sender = group.create_task(send(PIECE))
            await asyncio.sleep(61.0)
            assert sender.done()
            assert send.stalled is True

    run(work())
