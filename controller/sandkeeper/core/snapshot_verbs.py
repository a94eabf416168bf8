"""Parameters and answers of the directory's verbs for snapshots: retention, clean-up, archives.

The mutating ones carry a `request_id`; all of them may be repeated.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.ids import Name, RequestId
from sandkeeper.core.verbs import OfSnapshot, Params

KeepS = Annotated[float, Field(gt=0, le=100 * 365 * 86_400.0, allow_inf_nan=False)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]+$", max_length=4096)]


class PinSnapshot(OfSnapshot):
    """Keep a snapshot for `keep_s` after its last use from now on; None means for ever."""

    request_id: RequestId
    keep_s: KeepS | None = None


class UnpinSnapshot(OfSnapshot):
    """Keep a snapshot for the policy's default time from now on."""

    request_id: RequestId


class CollectGarbage(Params):
    """Remove what is over or claimed by nobody; with `dry_run` only say what would go."""

    dry_run: bool = True


class ExportSnapshot(OfSnapshot):
    """Write a snapshot into an archive at `path` on the installation's machine, in place of what is there."""

    request_id: RequestId
    path: AbsolutePath


class ImportSnapshot(Params):
    """Make a snapshot of the archive at `path`; `keep_s` None means the policy's default."""

    request_id: RequestId
    path: AbsolutePath
    name: Name | None = None
    keep_s: KeepS | None = None


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Garbage(_Answer):
    """One thing that goes, or would.

    Attributes:
        kind: What it is.
        name: Its id, or its name at the engine.
        why: The rule.
        size_bytes: What a snapshot holds above its parent; 0 where it is not known.
    """

    kind: Literal["snapshot", "container", "image"]
    name: str
    why: str
    size_bytes: int = 0


class GarbageReport(_Answer):
    """What a clean-up removed, or would remove."""

    dry_run: bool
    items: tuple[Garbage, ...] = ()


class Exported(_Answer):
    """An archive that was written.

    Attributes:
        sha256: Of the image inside, as the archive's manifest has it.
        size_bytes: The whole archive.
    """

    path: str
    sha256: str
    size_bytes: int
