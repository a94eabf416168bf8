"""Tending: what counts as idle or ailing, and which event each becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sandkeeper.core import events as ev
from sandkeeper.core.errors import Unavailable
from sandkeeper.core.record import Ailment, Phase, SandboxRecord
from sandkeeper.core.spec import Keep, OnIdle
from sandkeeper.owner.tending import Look, Tender
from sandkeeper.ports import real_ports
from tests.unit.core.samples import AT, record


@dataclass
class FakeMachine:
    record: SandboxRecord
    told: list[Any] = field(default_factory=list)

    def tell(self, event: Any) -> None:
        self.told.append(event)


@dataclass
class FakeCarer:
    sight: Look | None = None
    is_at_rest: bool = True
    quiesced: int = 0

    async def look(self, record: SandboxRecord) -> Look:
        if self.sight is None:
            raise Unavailable("no answer", code="runtime_silent")
        return self.sight

    async def quiesce_if_idle(self, record: SandboxRecord) -> bool:
        self.quiesced += 1
        return self.is_at_rest


def running(*, on_idle: OnIdle = OnIdle.SNAPSHOT, idle_timeout_s: float | None = 10, **changes: Any) -> Any:
    base = record(**changes)
    spec = base.spec.model_copy(update={"on_idle": on_idle, "idle_timeout_s": idle_timeout_s})
    return FakeMachine(base.model_copy(update={"spec": spec}))


async def tended(machine: FakeMachine, carer: FakeCarer, *, times: int = 1) -> list[Any]:
    tender = Tender(carer, ports=real_ports())
    for _ in range(times):
        await tender.tend([machine])  # type: ignore[list-item]
    return machine.told


@pytest.mark.parametrize(
    ("on_idle", "expected"),
    [
        (OnIdle.SNAPSHOT, ev.StopRequested(keep=Keep.SNAPSHOT, reason="idle")),
        (OnIdle.STOP, ev.StopRequested(keep=Keep.FILES, reason="idle")),
        (OnIdle.PAUSE, ev.PauseRequested(reason="idle")),
        (OnIdle.DESTROY, ev.DestroyRequested(reason="idle")),
    ],
)
async def test_an_idle_sandbox_is_put_to_rest(on_idle: OnIdle, expected: Any) -> None:
    assert await tended(running(on_idle=on_idle), FakeCarer(Look(10.0))) == [expected]


async def test_work_that_comes_before_the_rest_wins() -> None:
    carer = FakeCarer(Look(11.0), is_at_rest=False)
    assert await tended(running(), carer) == []
    assert carer.quiesced == 1


@pytest.mark.parametrize("idle_s", [0.0, 9.9])
async def test_a_busy_sandbox_is_left_alone(idle_s: float) -> None:
    carer = FakeCarer(Look(idle_s))
    assert await tended(running(), carer) == []
    assert carer.quiesced == 0


async def test_never_idle_without_a_limit() -> None:
    assert await tended(running(idle_timeout_s=None), FakeCarer(Look(1e9))) == []


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
async def test_only_running_sandboxes_are_looked_at(phase: Phase) -> None:
    machine = FakeMachine(record(phase))
    assert await tended(machine, FakeCarer(Look(1e9, "disk_exceeded"))) == []


async def test_an_ailing_box_is_told_and_not_put_to_rest() -> None:
    carer = FakeCarer(Look(1e9, "disk_exceeded", "full"))
    (event,) = await tended(running(), carer)
    assert event == ev.HealthChanged(generation=1, code="disk_exceeded", message="full")
    assert carer.quiesced == 0


async def test_a_box_that_is_well_again_is_told() -> None:
    ailing = running(ailment=Ailment(code="pids_exhausted", message="", since_at=AT))
    assert await tended(ailing, FakeCarer(Look(0.0))) == [ev.HealthChanged(generation=1, code=None)]


async def test_one_silence_is_not_yet_an_ailment() -> None:
    assert await tended(running(), FakeCarer(None)) == []


async def test_a_box_that_stays_silent_ails() -> None:
    (event,) = await tended(running(), FakeCarer(None), times=2)
    assert event.code == "sandbox_unhealthy"
    assert "runtime_silent" in event.message
