"""What an engine says about one container: evidence, never a decision."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from sandkeeper.core.ids import BirthId


class RuntimeState(StrEnum):
    """The engine's states, folded to those that matter."""

    CREATED = "created"
    RUNNING = "running"
    FROZEN = "frozen"
    EXITED = "exited"
    REMOVING = "removing"


class RuntimeObservation(BaseModel):
    """One container as the engine shows it.

    Attributes:
        birth_id: Its name, host name and label.
        state: What it is doing.
        pid: Host pid of process 1 while running or frozen, else None.
        exit_code: Exit code of process 1 once exited.
        oom_killed: The engine's word on whether the memory limit killed process 1.
        is_answering: Whether its boxd was told `go` for this birth and answers; None when not asked.
        generation: The generation its boxd says it is; None when not asked or not started.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    birth_id: BirthId
    state: RuntimeState
    pid: int | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    is_answering: bool | None = None
    generation: int | None = None
