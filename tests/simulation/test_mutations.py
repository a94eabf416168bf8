"""The simulation can fail: each way of breaking the product is caught within a bounded number of schedules."""

from __future__ import annotations

import pytest

from sandkeeper.virtual import StandstillError
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.schedule import run_schedule

WITHIN_SEEDS = 60


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_broken_product_is_caught(mutation: Mutation) -> None:
    with mutation():
        for seed in range(WITHIN_SEEDS):
            try:
                run_schedule(seed)
            except (BrokenPromiseError, StandstillError):
                return
    pytest.fail(f"{WITHIN_SEEDS} schedules did not notice")
