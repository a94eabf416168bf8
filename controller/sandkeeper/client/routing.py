"""Finds who answers for what, and repeats a call whose answer was lost, with the same request id.

Owns the directory's and the owners' callers, the cache of locations, and the one retry policy of control calls.
It never repeats a call that was answered: a typed refusal is an answer.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkeeper.client.installation import Installation
from sandkeeper.control.caller import DEFAULT_TIMEOUT_S, ControlCaller
from sandkeeper.core.errors import FailedPrecondition, Internal, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import SandboxId
from sandkeeper.ports import Ports

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

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
        self._is_closed = False

    async def directory(self, verb: str, params: BaseModel, *, answer: Any) -> Any:
        """Call a verb of the directory and return its answer, checked as `answer`."""
        document = params.model_dump(mode="json")
        return _checked(answer, await self.directory_raw(verb, document), verb=verb)

    async def owner(self, sandbox_id: SandboxId, verb: str, params: BaseModel, *, answer: Any) -> Any:
        """Call a verb of the owner of `sandbox_id` and return its answer, checked as `answer`."""
        document = params.model_dump(mode="json")
        return _checked(answer, await self.owner_raw(sandbox_id, verb, document), verb=verb)

    async def directory_raw(self, verb: str, document: dict[str, Any]) -> Any:
        """Call a verb of the directory with a JSON document and return its JSON answer."""

        async def once() -> Any:
            return await self._directory.call(verb, document, timeout_s=_wait_s(document))

        return await self._repeated(once)

    async def owner_raw(self, sandbox_id: SandboxId, verb: str, document: dict[str, Any]) -> Any:
        """Call a verb of the owner of `sandbox_id`, looking the owner up again whenever it is not there."""

        async def once() -> Any:
            caller = await self._owner_of(sandbox_id)
            try:
                return await caller.call(verb, document, timeout_s=_wait_s(document))
            except Unavailable:
                self._places.pop(sandbox_id, None)
                raise

        try:
            return await self._repeated(once)
        except SandkeeperError as error:
            error.sandbox_id = error.sandbox_id or sandbox_id
            raise

    async def locate(self, *, sandbox_id: str | None = None, name: str | None = None) -> SandboxId:
        """Find a sandbox by id or by name, keep where its owner answers, return its id.

        Raises:
            NotFound: There is none.
        """
        found = await self.directory_raw("find", {"sandbox_id": sandbox_id, "name": name})
        return self._keep_place(found)

    async def locate_any(self, id_or_name: str) -> SandboxId:
        """Find a sandbox by what may be its id or its name; ids come first.

        Raises:
            NotFound: There is none.
        """
        try:
            return await self.locate(sandbox_id=id_or_name)
        except NotFound:
            return await self.locate(name=id_or_name)

    async def close(self) -> None:
        """Give all callers up; calls are refused from then on. Repeating is safe."""
        self._is_closed = True
        for caller in (self._directory, *self._owners.values()):
            await caller.close()

    async def _owner_of(self, sandbox_id: SandboxId) -> ControlCaller:
        path = self._places.get(sandbox_id)
        if path is None:
            # One try: the retry around this call is the only one.
            self._keep_place(await self._directory.call("find", {"sandbox_id": sandbox_id, "name": None}))
            path = self._places[sandbox_id]
        caller = self._owners.get(path)
        if caller is None:
            caller = self._owners[path] = ControlCaller(self.installation.state_dir / Path(path))
        return caller

    def _keep_place(self, found: dict[str, Any]) -> SandboxId:
        sandbox_id = SandboxId(found["sandbox_id"])
        self._places[sandbox_id] = str(found["control_path"])
        return sandbox_id

    async def _repeated(self, once: Any) -> Any:
        if self._is_closed:
            raise FailedPrecondition(
                "this keeper was closed",
                code="keeper_closed",
                advice="use it inside its `async with` block, or open another",
            )
        try:
            return await once()
        except Unavailable as error:
            self._check_repeatable(error)
        from tenacity import (
            AsyncRetrying,
            retry_if_exception,
            stop_after_delay,
            wait_exponential,
            wait_random,
        )

        retrying = AsyncRetrying(
            sleep=self.ports.sleep,
            stop=stop_after_delay(self._retry_for_s),
            wait=wait_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MOST_S) + wait_random(0, RETRY_FIRST_S),
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


def _wait_s(document: dict[str, Any]) -> float:
    """The answer may take as long as the verb was told to wait, and the margin of every verb."""
    return DEFAULT_TIMEOUT_S + float(document.get("wait_s") or 0.0)


def _checked(answer: Any, document: Any, *, verb: str) -> Any:
    if answer is None:
        return None
    from pydantic import ValidationError

    try:
        return _adapter(answer).validate_python(document)
    except ValidationError as error:
        raise Internal(
            f"{verb}: its answer has another shape than this client knows: {error.errors()[0]['msg']}",
            code="control_answer_invalid",
            advice="client and supervisor may be of different versions; restart `sandkeeper up`",
            admitted="yes",
        ) from error


@cache
def _adapter(answer: Any) -> TypeAdapter[Any]:
    """Return the adapter of an answer's type; there are a dozen of them, and each takes a while to make."""
    from pydantic import TypeAdapter

    return TypeAdapter(answer)
