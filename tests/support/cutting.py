"""Connections to a box that a test can cut: all that are open, as a reset on the way would."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.boxd.connection import Connection
from sandkeeper.boxd.transport import Transport


class Cutter:
    """Knows every connection made since; `cut` ends those that are open and returns their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made: list[Connection] = []
        real = Transport._connect
        made = self._made

        async def noted(transport: Transport, *, step: str) -> Connection:
            connection = await real(transport, step=step)
            made.append(connection)
            return connection

        monkeypatch.setattr(Transport, "_connect", noted)

    def cut(self) -> int:
        open_ones = [connection for connection in self._made if connection.is_open]
        for connection in open_ones:
            transport: Any = connection._transport
            transport.abort()
        self._made.clear()
        return len(open_ones)
