"""Doors of the owner's rooms that let everything through, for tests of what is behind them."""

from __future__ import annotations

from sandkeeper.core.ids import SandboxId


async def no_bound(sandbox_id: SandboxId, memory_mib: int) -> None:
    """Admit every resize."""
