"""A process of its own for the store's crash tests.

    store_child.py write FOLDER WRITERS    take the lock, commit for ever, print one line per acknowledged entry
    store_child.py hold LOCKFILE           take the lock, print `held`, leave it when stdin closes
    store_child.py start LOCKFILE          as hold, and start a program that outlives it

Every line goes out with one write, after the acknowledgement it stands for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from pathlib import Path

from sandkeeper.core.ids import DEFAULT_TENANT, RequestId
from sandkeeper.ports import real_ports
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.locks import ProcessLock
from tests.support.store_samples import (
    MACHINE,
    moment,
    sample_answer,
    sample_entry,
    sample_record,
    sample_snapshot,
)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def write(folder: Path, writers: int) -> None:
    lock = ProcessLock(folder / "owner.lock", ports=real_ports())
    await lock.acquire_or_end()
    async with OwnerJournal(folder / "owner.db", machine_id=MACHINE, lock=lock) as journal:
        say("ready")
        async with asyncio.TaskGroup() as group:
            for writer in range(writers):
                group.create_task(write_for_ever(journal, writer))


async def write_for_ever(journal: OwnerJournal, writer: int) -> None:
    known = await journal.record(sample_record(writer).sandbox_id)
    for count in itertools.count(1 if known is None else known.command_count + 1):
        record = sample_record(writer, command_count=count, updated_at=moment(count))
        answer = sample_answer(f"r-{writer}-{count}", document={"count": count})
        snapshot = sample_snapshot(writer * 1_000_000 + count) if count % 5 == 0 else None
        details = {"writer": writer, "count": count}
        entry = sample_entry(record, details=details, answers=(answer,), snapshot=snapshot)
        seq = await journal.commit(entry)
        say(json.dumps({"seq": seq, "writer": writer, "count": count}))
        if count % 7 == 0:
            repeat = await journal.answer(RequestId(f"r-{writer}-{count}"), tenant_id=DEFAULT_TENANT)
            assert repeat == answer


async def hold(path: Path, *, starts_program: bool) -> None:
    lock = ProcessLock(path, ports=real_ports())
    await lock.acquire(timeout_s=30)
    if starts_program:
        say(str(os.posix_spawn("/bin/sleep", ["sleep", "300"], os.environ)))
    say("held")
    await asyncio.to_thread(sys.stdin.read)
    lock.release()


def main() -> None:
    verb, path = sys.argv[1], Path(sys.argv[2])
    if verb == "write":
        asyncio.run(write(path, int(sys.argv[3])))
    else:
        asyncio.run(hold(path, starts_program=verb == "start"))


if __name__ == "__main__":
    main()
