"""How long an owner's journal keeps what nobody needs any more: answers of requests, and lines of history.

Owns when a journal is pruned. Records of living sandboxes and the newest line are never touched.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from sandkeeper.core.errors import SandkeeperError
from sandkeeper.ports import Ports
from sandkeeper.store.contract import Journal

log = structlog.get_logger(__name__)

PRUNE_EVERY_S = 600.0
MAX_ROUNDS = 20
"""Most rounds at once; one round is bounded by the journal, and every commit waits behind it."""


class Retention:
    """Prunes one journal, every ten minutes at most."""

    def __init__(
        self, journal: Journal, *, keep_answers_s: float, keep_events_s: float, ports: Ports
    ) -> None:
        self._journal = journal
        self._keep_answers_s = keep_answers_s
        self._keep_events_s = keep_events_s
        self._ports = ports
        self._due_at_s: float | None = None

    async def prune_if_due(self) -> None:
        """Prune if that is due; what the journal refuses now is tried when it is due again.

        Raises:
            SandkeeperError: The journal is closed for good (`admitted` "unknown").
        """
        now_s = self._ports.clock.monotonic_s()
        if self._due_at_s is not None and now_s < self._due_at_s:
            return
        self._due_at_s = now_s + PRUNE_EVERY_S
        try:
            await self._prune()
        except SandkeeperError as error:
            if error.admitted == "unknown":
                raise
            log.warning("prune_failed", code=error.code, message=error.message)

    async def _prune(self) -> None:
        now = self._ports.clock.now()
        answers = await self._journal.prune_answers(before=now - timedelta(seconds=self._keep_answers_s))
        lines = 0
        for _ in range(MAX_ROUNDS):
            gone = await self._journal.prune_history(before=now - timedelta(seconds=self._keep_events_s))
            lines += gone
            if not gone:
                break
        if answers or lines:
            log.info("journal_pruned", answers=answers, lines=lines)
