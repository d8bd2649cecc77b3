"""Between a request and the threads that bring its answer: wake-ups, time limits, clients that leave."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from fastapi import HTTPException

from headstart.serving.batcher import LoopNotifier, wait_for


def test_answers_brought_together_wake_the_loop_once():
    async def listen():
        loop = asyncio.get_running_loop()
        notifier, woken = LoopNotifier(loop), []
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given: woken.append(1) or call(*given)
        waiters = [loop.create_future() for _ in range(20)]
        thread = threading.Thread(target=lambda: [notifier.notify(waiter) for waiter in waiters])
        thread.start()
        thread.join()  # the loop has had no turn meanwhile
        await asyncio.gather(*waiters)
        assert woken == [1]

    asyncio.run(listen())


def test_the_answers_of_one_loop_share_a_notifier(monkeypatch):
    made = []
    original = LoopNotifier.__init__
    monkeypatch.setattr(LoopNotifier, "__init__", lambda self, loop: made.append(1) or original(self, loop))

    async def ask():
        futures = [Future() for _ in range(3)]
        for future in futures:
            threading.Timer(0, future.set_result, (["yes"],)).start()
        assert await asyncio.gather(*(wait_for(future, 30) for future in futures)) == [["yes"]] * 3

    asyncio.run(ask())
    assert made == [1]


def test_an_answer_comes_from_another_thread():
    async def ask():
        future = Future()
        threading.Timer(0, future.set_result, (["yes"],)).start()
        return await wait_for(future, 30)

    assert asyncio.run(ask()) == ["yes"]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_request_that_is_cancelled_is_not_computed(is_running):
    """The server cancels the task of a request when its client disconnects."""

    async def ask():
        future = Future()
        task = asyncio.ensure_future(wait_for(future, 30))
        await asyncio.sleep(0)
        if is_running:
            future.set_running_or_notify_cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled() is not is_running

    asyncio.run(ask())


def test_an_answer_that_takes_too_long_is_refused_and_cancelled():
    async def ask():
        future = Future()
        with pytest.raises(HTTPException) as caught:
            await wait_for(future, 0.01)
        assert caught.value.status_code == 503
        assert future.cancelled()

    asyncio.run(ask())
