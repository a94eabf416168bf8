"""What boxd says of its box's health, asked over a link's transport. What it means is others' to decide."""

from __future__ import annotations

from sandkeeper.boxd.answers import Vitals, checked
from sandkeeper.boxd.transport import Transport

VITALS_LIMIT_BYTES = 64 * 1024


async def read_vitals(transport: Transport, *, timeout_s: float) -> Vitals:
    """Return the box's vitals.

    Raises:
        Unavailable: `runtime_unreachable` or `runtime_silent`.
        Aborted: `box_answer_invalid`, `connection_lost`.
    """
    answer = await transport.unary(
        "GET",
        "/sandkeeper/v1/health",
        None,
        step="health",
        wait_s=timeout_s,
        limit_bytes=VITALS_LIMIT_BYTES,
    )
    return checked(Vitals, answer, step="health")
