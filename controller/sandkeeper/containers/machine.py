"""The doors through which set-up acts on the machine.

Owns their one bundle, so that a test can put a machine of its own behind all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sandkeeper.containers.endpoint import Endpoint
from sandkeeper.containers.host import Host
from sandkeeper.ports import Clock


@dataclass(frozen=True, slots=True)
class Machine:
    """What getting and starting an engine needs from outside.

    Attributes:
        host: Commands and facts of the machine.
        environment: Environment variables (DOCKER_HOST, XDG_RUNTIME_DIR).
        clock: For deadlines.
        sleep: Blocks for a number of seconds.
        answers: Says whether an engine answers at an endpoint.
    """

    host: Host
    environment: Mapping[str, str]
    clock: Clock
    sleep: Callable[[float], None]
    answers: Callable[[Endpoint], bool]
