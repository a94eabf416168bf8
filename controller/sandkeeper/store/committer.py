"""The append path: one thread, one connection, all waiting writes in one durable transaction.

Owns when something is durable: `commit` returns only after the log's fsync. Never repeats a write by itself,
and never writes again once it cannot know what the disk holds, or once somebody else wrote the file.

Method: group commit (DeWitt et al., "Implementation Techniques for Main Memory Database Systems", 1984):
while one transaction syncs, later writes queue up and share the next sync.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import structlog

from sandkeeper.core.errors import FailedPrecondition, Internal, SandkeeperError
from sandkeeper.store.database import last_seq, open_for_reading, open_for_writing
from sandkeeper.store.errors import closed, from_sqlite, is_entry_fault
from sandkeeper.store.mark import HighWaterMark
from sandkeeper.store.migrations import Layout
from sandkeeper.store.outcomes import Outcome, Replies, Waiting, Work, refused

T = TypeVar("T")

GROUP_MAX = 256
"""Entries per transaction: bounds the wait of the first and what one full disk refuses together."""
CHECKPOINT_AFTER = 250
"""Entries between two moves of the log into the database; bounds the log to a few MiB of small entries."""


class Committer:
    """Writes one database file. Every method is called on the event loop that opened it."""

    def __init__(self, path: Path, *, layout: Layout) -> None:
        self.path = path
        self._layout = layout
        self._mark = HighWaterMark(path)
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._broken: SandkeeperError | None = None
        self._data_version = 0
        self._since_checkpoint = 0
        self._log = structlog.get_logger(__name__).bind(file=str(path))

    async def open(self) -> None:
        """Check the file, bring it up, and start the thread.

        Raises:
            DataLoss: `journal_damaged` or `journal_unwritable`; nothing was changed.
            FailedPrecondition: `schema_newer` or `schema_foreign`; nothing was changed.
            ResourceExhausted: `disk_full`.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        ended: asyncio.Future[None] = loop.create_future()
        target = Replies(loop, log=self._log)
        thread = threading.Thread(
            target=self._run, args=(target, opened, ended), name=f"commit {self.path.name}", daemon=True
        )
        thread.start()
        try:
            await opened
        except BaseException:
            # A failed open has ended the thread; after a cancelled one it closes what it opened.
            self._queue.put(None)
            raise
        self._loop, self._ended = loop, ended

    async def commit(self, work: Work[T]) -> T:
        """Run `work` in the next transaction and return its value once that is durable.

        A cancelled wait does not take the write back. An entry whose `work` raises is undone alone.

        Raises:
            SandkeeperError: What `work` raised; or for its group ResourceExhausted `disk_full` (admitted no),
                DataLoss `journal_unwritable` (admitted unknown) or FailedPrecondition `journal_fenced`, after
                both of which only a reopened file can be written; or FailedPrecondition `journal_closed`.
        """
        if self._ended is None or self._loop is None:
            raise closed(self.path)
        if self._broken is not None:
            raise self._refusal()
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(Waiting(work, future))
        return await future

    async def close(self) -> None:
        """Finish what is queued, move the log into the file, and close it; safe to repeat."""
        if self._ended is None:
            return
        ended, self._ended = self._ended, None
        self._queue.put(None)
        await ended

    def _refusal(self) -> SandkeeperError:
        """Return the error for a write after the committer broke: this one was certainly not done."""
        broken = self._broken or closed(self.path)
        return type(broken)(
            f"no more writes after: {broken.message}", code=broken.code, advice=broken.advice, admitted="no"
        )

    # ---- the thread

    def _run(self, replies: Replies, opened: asyncio.Future[None], ended: asyncio.Future[None]) -> None:
        try:
            connection = open_for_writing(self.path, layout=self._layout, mark=self._mark)
            self._data_version = _data_version(connection)
        except BaseException as error:  # noqa: BLE001 - raised in the opener
            replies.send([Outcome(opened, error=error)])
            return
        replies.send([Outcome(opened)])
        while group := self._take():
            try:
                outcomes = self._perform(connection, group)
            except BaseException as error:  # noqa: BLE001 - raised in the writers
                self._log.exception("committer_failed")
                self._broken = Internal(
                    f"the committer of {self.path.name} failed: {error!r}", admitted="unknown"
                )
                outcomes = refused(group, error=self._broken)
            replies.send(outcomes)
            if self._broken is None and self._since_checkpoint >= CHECKPOINT_AFTER:
                self._checkpoint(connection, mode="PASSIVE")
        self._finish(connection)
        replies.send([*refused(self._rest(), error=closed(self.path)), Outcome(ended)])

    def _take(self) -> list[Waiting]:
        """Return all that waits, up to GROUP_MAX; empty when it is time to close."""
        first = self._queue.get()
        if first is None:
            return []
        group = [first]
        while len(group) < GROUP_MAX:
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            group.append(following)
        return group

    def _rest(self) -> list[Waiting]:
        rest = []
        while not self._queue.empty():
            waiting = self._queue.get_nowait()
            if waiting is not None:
                rest.append(waiting)
        return rest

    def _perform(self, connection: sqlite3.Connection, group: list[Waiting]) -> list[Outcome]:
        """Make the group durable; every entry gets its own outcome."""
        if self._broken is not None:
            return refused(group, error=self._refusal())
        is_committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._refuse_second_writer(connection)
            is_alone = len(group) == 1
            outcomes = [self._perform_one(connection, waiting, is_alone=is_alone) for waiting in group]
            if all(outcome.error is not None for outcome in outcomes):
                _undo(connection)
                return outcomes
            seq = last_seq(connection, layout=self._layout)
            is_committing = True
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure = self._group_failure(error, is_committing=is_committing)
            _undo(connection)
            return refused(group, error=failure)
        except FailedPrecondition as fenced:
            self._broken = fenced
            _undo(connection)
            return refused(group, error=fenced)
        self._remember(seq)
        self._since_checkpoint += len(group)
        return outcomes

    def _perform_one(self, connection: sqlite3.Connection, waiting: Waiting, *, is_alone: bool) -> Outcome:
        """Run one entry in a savepoint of its own; what breaks the whole transaction is raised."""
        failure: BaseException
        try:
            if not is_alone:
                connection.execute("SAVEPOINT entry")
            value = waiting.work(connection)
            if not is_alone:
                connection.execute("RELEASE entry")
        except sqlite3.Error as error:
            if not is_entry_fault(error):
                raise
            failure = from_sqlite(error, path=self.path, step="commit")
            failure.__cause__ = error
        except Exception as error:  # noqa: BLE001 - raised in the writer
            failure = error
        else:
            return Outcome(waiting.future, value=value)
        if not is_alone:
            connection.execute("ROLLBACK TO entry")
            connection.execute("RELEASE entry")
        return Outcome(waiting.future, error=failure)

    def _refuse_second_writer(self, connection: sqlite3.Connection) -> None:
        if _data_version(connection) != self._data_version:
            raise FailedPrecondition(
                f"another process has written {self.path.name}; this one is stale and stops writing",
                code="journal_fenced",
                advice="only one process may own it: check that its lock file was not removed",
                details={"path": str(self.path)},
            )

    def _group_failure(self, error: sqlite3.Error, *, is_committing: bool) -> SandkeeperError:
        """Return the error of every entry of the group; a failed sync also ends this committer's writing.

        After a failed fsync the kernel may have dropped the pages: nobody knows what the disk holds, and a
        second fsync that succeeds proves nothing (Rebello et al., "Can Applications Recover from fsync
        Failures?", 2020).
        """
        failure = from_sqlite(
            error, path=self.path, step="commit", admitted="unknown" if is_committing else "no"
        )
        if failure.code == "journal_damaged" or (failure.code == "journal_unwritable" and is_committing):
            self._broken = failure
        return failure

    def _remember(self, seq: int) -> None:
        try:
            self._mark.write(seq)
        except OSError as error:
            # The entry is durable and is acknowledged; only the check at the next open is weaker.
            self._log.warning("journal_mark_not_written", seq=seq, error=str(error))

    def _checkpoint(self, connection: sqlite3.Connection, *, mode: str) -> None:
        """Move the log into the database; a full disk is no fault here, the log keeps everything."""
        self._since_checkpoint = 0
        try:
            connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error as error:
            failure = from_sqlite(error, path=self.path, step="checkpoint")
            self._log.warning("journal_checkpoint_failed", code=failure.code, error=failure.message)
            if failure.code != "disk_full":
                self._broken = failure

    def _finish(self, connection: sqlite3.Connection) -> None:
        """Close; the last close of a trusted file moves its log, a broken file is left as it is."""
        try:
            if self._broken is None:
                self._checkpoint(connection, mode="TRUNCATE")
                connection.close()
            else:
                with closing(open_for_reading(self.path)) as witness:
                    # While a second connection reads, closing the first does not move the log.
                    witness.execute("PRAGMA user_version").fetchone()
                    connection.close()
        except (sqlite3.Error, OSError) as error:
            self._log.warning("journal_close_failed", error=str(error))
        finally:
            self._mark.close()


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection has committed to the file."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
