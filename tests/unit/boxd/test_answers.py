"""What boxd answers, as models: what it does not know is null and no fault."""

from __future__ import annotations

import pytest

from sandkeeper.boxd.answers import Vitals, checked
from sandkeeper.core.errors import Aborted

REPORT = {
    "pids": {"current": None, "max": None},
    "diskUsedBytes": None,
    "diskLimitBytes": 0,
    "diskFreeBytes": None,
    "memory": {"usedBytes": None, "limitBytes": None},
    "shell": True,
    "canFork": True,
    "oomKills": 0,
    "state": "running",
}


def test_vitals_that_boxd_does_not_know() -> None:
    vitals = checked(Vitals, REPORT, step="health")
    assert (vitals.disk_used_bytes, vitals.pids.max, vitals.memory.used_bytes) == (None, None, None)


@pytest.mark.parametrize("wrong", [-1, "five", 1.5, 2**63])
def test_vitals_that_cannot_be_are_refused(wrong: object) -> None:
    with pytest.raises(Aborted) as refused:
        checked(Vitals, REPORT | {"diskUsedBytes": wrong}, step="health")
    assert refused.value.code == "box_answer_invalid"
