"""Schedules with crashes at every await: no promise may break, and the mutations must be caught."""

from __future__ import annotations

import os

import pytest

from tests.simulation.schedule import run_schedule

SEEDS = int(os.environ.get("SANDKEEPER_SIMULATION_SEEDS", "200"))
BATCH = 25
FAILED_BEFORE: tuple[int, ...] = (10, 80, 133)
"""Seeds that failed once; each stays here for ever."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_schedules_keep_the_promises(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        run_schedule(seed)


@pytest.mark.parametrize("seed", FAILED_BEFORE)
def test_a_seed_that_failed_once_stays_mended(seed: int) -> None:
    run_schedule(seed)
