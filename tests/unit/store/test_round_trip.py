"""Whatever record or event there can be, the journal gives back an equal one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandkeeper.core.commands import Command
from sandkeeper.core.events import EVENTS, Event
from sandkeeper.core.record import SandboxRecord
from tests.support.store_samples import START, held_lock, owner_journal, sample_entry
from tests.support.store_strategies import COMMAND_KINDS, any_event, any_record


def test_the_strategies_draw_every_kind() -> None:
    assert set(get_args(get_args(Command)[0])) == set(COMMAND_KINDS)
    assert set(get_args(get_args(Event)[0])) == set(EVENTS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(any_record, st.none() | any_event),
        min_size=1,
        max_size=6,
        unique_by=lambda pair: pair[0].sandbox_id,
    )
)
async def test_records_and_events_come_back_equal(pairs: list[tuple[SandboxRecord, Event | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lock = held_lock(Path(folder))
        async with owner_journal(Path(folder), lock) as journal:
            for record, event in pairs:
                kind = "created" if event is None else event.kind
                await journal.commit(sample_entry(record, kind=kind, at=START, event=event))
            for record, _ in pairs:
                assert await journal.record(record.sandbox_id) == record
            lines = await journal.events()
        lock.release()
    assert [line.event for line in lines] == [event for _, event in pairs]
