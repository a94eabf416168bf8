"""A machine for set-up tests: answers commands from a table and remembers what was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandkeeper.containers.endpoint import Endpoint
from sandkeeper.containers.host import Finished
from sandkeeper.containers.machine import Machine

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}


@dataclass
class FakeHost:
    """A host whose commands are in memory; a command not in `results` succeeds with no output."""

    root: bool = True
    commands: set[str] = field(default_factory=lambda: {"apt-get"})
    release: Mapping[str, str] = field(default_factory=lambda: DEBIAN)
    results: dict[str, Callable[[Sequence[str]], Finished]] = field(default_factory=dict)
    cgroups: bool = True
    systemd: bool = False
    calls: list[list[str]] = field(default_factory=list)

    def is_root(self) -> bool:
        return self.root

    def has_command(self, name: str) -> bool:
        return name in self.commands

    def os_release(self) -> Mapping[str, str]:
        return self.release

    def has_cgroups(self) -> bool:
        return self.cgroups

    def has_systemd(self) -> bool:
        return self.systemd

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Finished:
        self.calls.append(list(argv))
        if argv[:2] == ["apt-get", "install"]:
            self.commands.update("dockerd" if name == "docker.io" else name for name in argv)
        answer = self.results.get(argv[0])
        return answer(argv) if answer else Finished(exit_code=0, output="")


@dataclass
class StepClock:
    """A clock that moves only when somebody sleeps on it."""

    at_s: float = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


def fake_machine(
    host: FakeHost,
    *,
    answers: Callable[[Endpoint], bool],
    environment: Mapping[str, str] | None = None,
    clock: StepClock | None = None,
) -> Machine:
    """Return a machine whose engine answers as `answers` says."""
    steps = clock or StepClock()
    return Machine(host=host, environment=environment or {}, clock=steps, sleep=steps.sleep, answers=answers)
