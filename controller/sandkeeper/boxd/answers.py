"""The shape of what boxd says in one JSON document, checked before anyone believes it.

Owns the base of all answers and the documents of the control and filesystem routes. Pure. Bounds: texts, counts
and (through the transport) the size of the document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from sandkeeper.boxd import errors

_Text = Annotated[str, StringConstraints(max_length=256)]
_Path = Annotated[str, StringConstraints(max_length=4096)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
FileType = Literal["file", "directory", "symlink", "other"]


def _file_type(value: object) -> object:
    return _FILE_TYPES.get(value, "other") if isinstance(value, str) else "other"


_FILE_TYPES: dict[str, FileType] = {
    "FILE_TYPE_FILE": "file",
    "FILE_TYPE_DIRECTORY": "directory",
    "FILE_TYPE_SYMLINK": "symlink",
}


class Answer(BaseModel):
    """What boxd says. Keys we do not know are dropped: a later build of boxd may say more."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        defer_build=True,  # a shell's `exec` imports this and uses none of it
    )


AnswerT = TypeVar("AnswerT", bound=Answer)


class Hello(Answer):
    """Who answers, and in which state.

    Attributes:
        protocol: Version of the routes; ours is 1.
        build: Version text of boxd.
        birth_id: Host name of the container.
        generation: 0 before go.
        epoch: Highest epoch boxd has seen.
        state: `waiting` before go, `running`, or `draining` (takes no new work).
        runs: How many commands are running.
        cap_bounding: Capability bounding set, hexadecimal.
        boot_ms: Time from process start to serving.
        idle_ms: Time since the last activity that keeps a sandbox awake; 0 while there is one.
    """

    protocol: int
    build: _Text = ""
    birth_id: _Text
    generation: _Count = 0
    epoch: _Count = 0
    state: Literal["waiting", "running", "draining", "disk_exceeded"]
    runs: _Count = 0
    cap_bounding: _Text = ""
    boot_ms: _Count = 0
    idle_ms: _Count = 0


class Counted(Answer):
    """A number with its bound; None means that the kernel does not say, or that there is no bound."""

    current: _Count | None = None
    max: _Count | None = None


class MemoryUse(Answer):
    """Memory of the box in bytes; None means that the kernel does not say, or that there is no limit."""

    used_bytes: _Count | None = None
    limit_bytes: _Count | None = None


class Vitals(Answer):
    """What boxd says of the box's health: evidence of an untrusted witness.

    Attributes:
        state: As in `Hello`, or `disk_exceeded`.
        shell: Whether `/bin/sh` exists and may be executed.
        can_fork: Whether another process fits under the process limit.
        disk_used_bytes: What was written to the root filesystem since go; None when it was not measured yet.
        oom_kills: Processes the memory limit has killed in this generation.
    """

    state: _Text
    shell: bool = True
    can_fork: bool = True
    pids: Counted = Counted()
    memory: MemoryUse = MemoryUse()
    disk_used_bytes: _Count | None = None
    oom_kills: _Count = 0


class Quiesced(Answer):
    """Answer to quiesce: `drained` takes no new work; `busy` changed nothing. `runs` still going."""

    state: Literal["drained", "busy"]
    runs: tuple[_Text, ...] = ()


class MetadataSaved(Answer):
    """What boxd wrote into its side file.

    Attributes:
        entries: Files it holds something about.
        is_truncated: Whether a bound ended it before it had all.
    """

    entries: _Count = 0
    is_truncated: Annotated[bool, Field(alias="truncated")] = False


class FileEntry(Answer):
    """One file of the box.

    Attributes:
        name: Last part of the path.
        type: Of the file; for a symbolic link, of what it leads to (`other` if that is missing).
        path: Absolute path.
        size_bytes: Apparent size.
        mode: Permission bits.
        permissions: The same in letters.
        owner: User name, or the number as text.
        group: Group name, or the number as text.
        modified_at: Last change of the content.
        symlink_target: Absolute path a symbolic link leads to; None for others.
        is_symlink: Whether the path itself is a symbolic link.
    """

    name: _Path
    type: Annotated[FileType, BeforeValidator(_file_type)] = "other"
    path: _Path
    size_bytes: Annotated[_Count, Field(alias="size")] = 0
    mode: Annotated[int, Field(ge=0, lt=2**32)] = 0
    permissions: _Text = ""
    owner: _Text = ""
    group: _Text = ""
    modified_at: Annotated[AwareDatetime | None, Field(alias="modifiedTime")] = None
    symlink_target: _Path | None = None
    is_symlink: bool = False


class EntryAnswer(Answer):
    """Answer of the routes that describe one file."""

    entry: FileEntry


class EntriesAnswer(Answer):
    """Answer of ListDir."""

    entries: tuple[FileEntry, ...] = ()


class ArchiveLoaded(Answer):
    """What an uploaded archive held.

    Attributes:
        files: Number of members written.
        size_bytes: Their content together.
    """

    files: _Count
    size_bytes: Annotated[_Count, Field(alias="bytes")]


def checked(kind: type[AnswerT], answer: dict[str, Any], *, step: str) -> AnswerT:
    """Return `answer` as `kind`.

    Raises:
        Aborted: `box_answer_invalid`.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise errors.invalid_answer(f"{where}: {first['msg']}", step=step, admitted="yes") from error
