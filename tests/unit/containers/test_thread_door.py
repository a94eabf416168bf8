"""A call on a thread and its caller: who waits for whom."""

import asyncio
import threading

import pytest

from sandkeeper.containers.thread_door import ThreadDoor
from sandkeeper.core.errors import Unavailable


async def begun(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait)


async def test_answers_and_errors_come_back() -> None:
    door = ThreadDoor("test")
    assert await door.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await door.call_slow(lambda: 1 // 0)
    door.close()


async def test_a_cancelled_caller_waits_for_the_call_however_often_it_is_cancelled() -> None:
    door, has_begun, may_end = ThreadDoor("test"), threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait(10)

    calling = asyncio.create_task(door.call(work))
    await begun(has_begun)
    for _ in range(3):
        calling.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not calling.done()
    may_end.set()
    await asyncio.wait({calling})
    assert calling.cancelled()
    door.close()


async def test_the_error_of_a_call_whose_caller_was_cancelled_is_not_lost_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door, has_begun, may_end = ThreadDoor("test"), threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait(10)
        raise RuntimeError("late")

    calling = asyncio.create_task(door.call(work))
    await begun(has_begun)
    calling.cancel()
    may_end.set()
    await asyncio.wait({calling})
    assert calling.cancelled()
    assert caplog.records == []
    door.close()


async def test_a_call_still_queued_never_begins_when_its_caller_is_cancelled() -> None:
    door, has_begun, may_end = ThreadDoor("test", threads=1), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        has_begun.set()
        may_end.wait(10)

    occupying = asyncio.create_task(door.call(first))
    await begun(has_begun)
    queued = asyncio.create_task(door.call(lambda: done.append("second")))
    await asyncio.sleep(0)
    queued.cancel()
    await asyncio.wait({queued})
    assert queued.cancelled()
    may_end.set()
    await occupying
    await door.call(lambda: done.append("third"))
    assert done == ["third"]
    door.close()


async def test_slow_calls_leave_threads_for_quick_ones() -> None:
    door, may_end = ThreadDoor("test", threads=3, slow_threads=2), threading.Event()
    slow = [asyncio.create_task(door.call_slow(lambda: may_end.wait(10))) for _ in range(6)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(door.call(lambda: "quick"), 5) == "quick"
    may_end.set()
    assert await asyncio.gather(*slow) == [True] * 6
    door.close()


async def test_a_closed_door_takes_no_call() -> None:
    door = ThreadDoor("test")
    door.close()
    with pytest.raises(Unavailable) as caught:
        await door.call(lambda: 1)
    assert (caught.value.code, caught.value.admitted) == ("engine_closed", "no")
