"""The configuration of one installation, and where everything lies in its state folder.

Owns names of files. Makes no folder and reads no file but `config.toml`.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandkeeper.core.admission import Policy
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import OwnerId

WEEK_S = 7 * 86_400.0
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400, allow_inf_nan=False)]


def default_state_dir() -> Path:
    """Return the state folder used when none is named: `SANDKEEPER_STATE_DIR`, else a place by user."""
    named = os.environ.get("SANDKEEPER_STATE_DIR")
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/sandkeeper")
    return Path.home() / ".local" / "share" / "sandkeeper"


class Config(BaseModel):
    """What an operator may set, in `config.toml` of the state folder or by `Keeper.local(**config)`.

    Attributes:
        state_dir: Where everything durable lies; one installation each.
        owners: Owners made at the first start; more are made when these are full.
        sandboxes_per_owner: Sandboxes one owner process takes; 1 gives each sandbox an actor of its own.
        engine: Empty or `docker` for the machine's engine, `unix:///path` for that one, or
            `module:factory` for another implementation.
        images: References of the operator's own catalogue images by name (`name = "repository@sha256:..."`);
            shipped images need none. The policy says which names may be asked for.
        policy: Bounds of every create.
        audit_s: Seconds between comparisons of all records with the engine.
        tend_s: Seconds between two looks at the health and idleness of running sandboxes.
        reap_every_s: Seconds between two rounds of removing what no record claims.
        reap_after_s: Age at which an unclaimed container is removed.
        keep_answers_s: How long a repeated request still gets its first answer; 7 days.
        keep_events_s: How long journal lines and records of destroyed sandboxes are kept; 7 days.
        idle_exit_s: Seconds without any sandbox after which `up` ends; None means never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = Field(default_factory=default_state_dir)
    owners: Annotated[int, Field(ge=1, le=64)] = 2
    sandboxes_per_owner: Annotated[int, Field(ge=1, le=4096)] = 64
    engine: str = ""
    images: dict[str, str] = Field(default_factory=dict)
    policy: Policy = Field(default_factory=Policy)
    audit_s: Seconds = 10.0
    tend_s: Seconds = 3.0
    reap_every_s: Seconds = 15.0
    reap_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    keep_answers_s: Annotated[Seconds, Field(ge=3600)] = WEEK_S
    keep_events_s: Annotated[Seconds, Field(ge=3600)] = WEEK_S
    idle_exit_s: Seconds | None = None

    @property
    def paths(self) -> StatePaths:
        """The layout of the state folder."""
        return StatePaths(self.state_dir)


def load_config(state_dir: Path | None = None, **overrides: Any) -> Config:
    """Read `config.toml` of the state folder, if there is one, and lay `overrides` over it.

    Raises:
        InvalidArgument: `config_invalid`, naming the file or the field.
    """
    folder = (state_dir or default_state_dir()).absolute()
    path = folder / "config.toml"
    settings: dict[str, Any] = {}
    try:
        settings = tomllib.loads(path.read_text())
    except FileNotFoundError:
        pass
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidArgument(f"{path}: {error}", code="config_invalid") from error
    try:
        return Config.model_validate({**settings, **overrides, "state_dir": folder})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(
            f"configuration: {field}: {first['msg']}",
            code="config_invalid",
            advice=f"mend {path} or the argument",
            details={"field": field},
        ) from error


class StatePaths:
    """Names inside one state folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = root / "machine.json"
        self.up = root / "up.json"
        self.up_lock = root / "up.lock"
        self.ray_folder = root / "ray_folder"
        self.catalogue = root / "catalogue.db"
        self.catalogue_lock = root / "catalogue.lock"
        self.directory_socket = root / "directory.sock"
        self.logs = root / "logs"
        self.owners = root / "owners"

    def owner(self, owner_id: OwnerId) -> OwnerPaths:
        """Return the names of one owner."""
        return OwnerPaths(self.owners / owner_id)


class OwnerPaths:
    """Names inside one owner's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "owner.db"
        self.lock = folder / "owner.lock"
        self.control_socket = folder / "control.sock"
