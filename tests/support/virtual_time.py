"""Runs an async test in virtual time: nothing in it ever waits for real."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from sandkeeper.virtual import VirtualLoop, run_virtual, virtual_ports

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def in_virtual_time(test: AsyncTest) -> Callable[..., None]:
    """Turn `async def test(ports, ...)` into a test that gets its ports, and the rest from pytest."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        loop = VirtualLoop()
        run_virtual(test(virtual_ports(loop, seed=1), **fixtures), loop=loop)

    parameters = list(inspect.signature(test).parameters.values())
    run.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    del run.__wrapped__
    return run
