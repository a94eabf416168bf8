"""Finds who answers for what, and repeats a call whose answer was lost, with the same request id.

Owns the directory's and the owners' callers, the cache of locations, and the one retry policy of control calls.
It never repeats a call that was answered: a typed refusal is an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from sandkeeper.client.installation import Installation
from sandkeeper.control.caller import DEFAULT_TIMEOUT_S, ControlCaller
from sandkeeper.core.errors import Internal, SandkeeperError, Unavailable
from sandkeeper.core.ids import SandboxId
from sandkeeper.core.verbs import FindSandbox, Location, Params
from sandkeeper.ports import Ports

RETRY_FOR_S = 60.0
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
REPEATED_CODES = frozenset({"owner_unreachable", "owner_closing", "owner_starting", "directory_starting"})
"""Codes that mean: nobody gave an answer. Everything else is one."""


class Router:
    """Calls verbs of the directory and of owners, for one event loop."""

    def __init__(self, installation: Installation, *, ports: Ports, retry_for_s: float = RETRY_FOR_S) -> None:
        self.installation = installation
        self.ports = ports
        self._retry_for_s = retry_for_s
        self._directory = ControlCaller(installation.directory_socket)
        self._owners: dict[str, ControlCaller] = {}
        self._places: dict[SandboxId, str] = {}

    async def directory(self, verb: str, params: BaseModel, *, answer: Any) -> Any:
        """Call a verb of the directory and return its answer, checked as `answer`."""
        document = params.model_dump(mode="json")

        async def once() -> Any:
            return await self._directory.call(verb, document, timeout_s=_wait_s(params))

        return _checked(answer, await self._repeated(once), verb=verb)

    async def owner(self, sandbox_id: SandboxId, verb: str, params: BaseModel, *, answer: Any) -> Any:
        """Call a verb of the owner of `sandbox_id`, looking the owner up again whenever it is not there."""
        document = params.model_dump(mode="json")

        async def once() -> Any:
            caller = await self._owner_of(sandbox_id)
            try:
                return await caller.call(verb, document, timeout_s=_wait_s(params))
            except Unavailable:
                self._places.pop(sandbox_id, None)
                raise

        try:
            return _checked(answer, await self._repeated(once), verb=verb)
        except SandkeeperError as error:
            error.sandbox_id = error.sandbox_id or sandbox_id
            raise

    async def locate(self, *, sandbox_id: SandboxId | None = None, name: str | None = None) -> Location:
        """Return where a sandbox lives, by id or by name.

        Raises:
            NotFound: There is none.
        """
        found: Location = await self.directory(
            "find", FindSandbox(sandbox_id=sandbox_id, name=name), answer=Location
        )
        self._places[found.sandbox_id] = found.control_path
        return found

    async def close(self) -> None:
        """Give all callers up. Repeating is safe."""
        for caller in (self._directory, *self._owners.values()):
            await caller.close()

    async def _owner_of(self, sandbox_id: SandboxId) -> ControlCaller:
        path = self._places.get(sandbox_id)
        if path is None:
            # One try: the retry around this call is the only one.
            found = await self._directory.call(
                "find", FindSandbox(sandbox_id=sandbox_id).model_dump(mode="json")
            )
            path = Location.model_validate(found).control_path
            self._places[sandbox_id] = path
        caller = self._owners.get(path)
        if caller is None:
            caller = self._owners[path] = ControlCaller(self.installation.state_dir / Path(path))
        return caller

    async def _repeated(self, once: Any) -> Any:
        try:
            return await once()
        except Unavailable as error:
            self._check_repeatable(error)
        from tenacity import (
            AsyncRetrying,
            retry_if_exception,
            stop_after_delay,
            wait_exponential_jitter,
        )

        retrying = AsyncRetrying(
            sleep=self.ports.sleep,
            stop=stop_after_delay(self._retry_for_s),
            wait=wait_exponential_jitter(initial=RETRY_FIRST_S, max=RETRY_MOST_S, jitter=RETRY_FIRST_S),
            retry=retry_if_exception(self._is_repeatable),
            reraise=True,
        )
        return await retrying(once)

    def _is_repeatable(self, error: BaseException) -> bool:
        return isinstance(error, Unavailable) and error.code in REPEATED_CODES and self.installation.is_up()

    def _check_repeatable(self, error: Unavailable) -> None:
        if self._is_repeatable(error):
            return
        if error.code == "owner_unreachable" and not self.installation.is_up():
            not_up = self.installation.not_up()
            not_up.admitted = error.admitted
            raise not_up from error
        raise error


def _wait_s(params: BaseModel) -> float:
    """The answer may take as long as the verb was told to wait, and the margin of every verb."""
    extra_s = getattr(params, "wait_s", 0.0) if isinstance(params, Params) else 0.0
    return DEFAULT_TIMEOUT_S + float(extra_s)


def _checked(answer: Any, document: Any, *, verb: str) -> Any:
    if answer is None:
        return None
    try:
        return TypeAdapter(answer).validate_python(document)
    except ValidationError as error:
        raise Internal(
            f"{verb}: its answer has another shape than this client knows: {error.errors()[0]['msg']}",
            code="control_answer_invalid",
            advice="client and supervisor may be of different versions; restart `sandkeeper up`",
            admitted="yes",
        ) from error
