"""Between a request and others: a client that leaves, and threads that bring answers."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from starlette.requests import Request

from headstart.serving.call import answered
from headstart.serving.link import LINK, ClientGone, Link, outbox_of
from headstart.serving.refusal import Refusal


def request_over(link):
    return Request({"type": "http", "state": {LINK: link}})


def test_answers_brought_together_wake_the_loop_once():
    async def listen():
        loop = asyncio.get_running_loop()
        outbox, woken = outbox_of(loop), []
        assert outbox_of(loop) is outbox
        call, loop.call_soon_threadsafe = (
            loop.call_soon_threadsafe,
            lambda *given: woken.append(1) or call(*given),
        )
        waiting = [loop.create_future() for _ in range(20)]
        bringer = threading.Thread(target=lambda: [outbox.put(told) for told in waiting])
        bringer.start()
        bringer.join()  # the loop has had no turn meanwhile
        await asyncio.gather(*waiting)
        assert woken == [1]

    asyncio.run(listen())


def test_an_answer_comes_from_another_thread():
    async def ask():
        future = Future()
        threading.Timer(0, future.set_result, (["yes"],)).start()
        return await answered(future, request_over(Link(lambda: None)), 30)

    assert asyncio.run(ask()) == ["yes"]


@pytest.mark.parametrize("is_gone_before", [True, False])
def test_who_leaves_is_not_answered_and_not_read_for(is_gone_before):
    async def ask():
        link, future = Link(lambda: None), Future()
        if is_gone_before:
            link.leave()
        else:
            asyncio.get_running_loop().call_soon(link.leave)
        with pytest.raises(ClientGone):
            await answered(future, request_over(link), 30)
        assert future.cancelled()

    asyncio.run(ask())


def test_an_answer_that_takes_too_long_is_refused_and_called_off():
    async def ask():
        future = Future()
        with pytest.raises(Refusal) as caught:
            await answered(future, request_over(Link(lambda: None)), 0.01)
        assert caught.value.status == 503
        assert future.cancelled()

    asyncio.run(ask())


def test_another_server_is_asked_whether_its_client_still_listens():
    async def ask():
        messages = [{"type": "http.request"}, {"type": "http.disconnect"}]

        async def receive():
            return messages.pop(0)

        with pytest.raises(ClientGone):
            await answered(Future(), Request({"type": "http"}, receive), 30)

    asyncio.run(ask())
