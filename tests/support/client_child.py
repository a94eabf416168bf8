"""A coordinator in a process of its own, to be ended: `-m tests.support.client_child STATE SNAPSHOT COUNT [TTL_S]`.

Prints a line for each attempt whose command is running; the commands never end by themselves.
"""

from __future__ import annotations

import asyncio
import sys

from sandkeeper import Attempt, Keeper, Step
from sandkeeper.client.attempt import AttemptEvent


def tell(event: AttemptEvent) -> None:
    if event.kind == "step_started":
        print(event.attempt, flush=True)


async def main() -> None:
    state_dir, snapshot, count, *ttl_s = sys.argv[1:]
    options = {"client_ttl_s": float(ttl_s[0])} if ttl_s else {}
    attempts = [Attempt(f"a{number}", [Step("sleep 600")]) for number in range(int(count))]
    async with Keeper.join(state_dir, **options) as keeper:
        await keeper.attempts(snapshot, attempts, on_progress=tell, size={"vcpu": 1, "memory_mib": 256})


if __name__ == "__main__":
    asyncio.run(main())
