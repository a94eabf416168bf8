"""Who this machine and this installation are: made once, kept in the state folder."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sandkeeper.core.errors import DataLoss
from sandkeeper.core.ids import InstallationId, MachineId
from sandkeeper.ports import Ports


class Identity(BaseModel):
    """Ids that every record, container label and image name of this installation carries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine_id: MachineId
    installation_id: InstallationId


def load_identity(path: Path, *, ports: Ports) -> Identity:
    """Read the identity, making it at the first start; a repeat gives the same.

    Raises:
        DataLoss: `identity_damaged`: the file cannot be read as one.
    """
    try:
        return Identity.model_validate_json(path.read_text())
    except FileNotFoundError:
        pass
    except (ValidationError, UnicodeDecodeError) as error:
        raise DataLoss(
            f"{path} is damaged", code="identity_damaged", advice="restore it from a backup"
        ) from error
    made = Identity(
        machine_id=MachineId(f"m{ports.new_token()}"), installation_id=InstallationId(f"i{ports.new_token()}")
    )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        file.write(made.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return made
