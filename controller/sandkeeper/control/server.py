"""Serves a dispatch table on a unix socket that only the controller's own user can open.

Owns the HTTP shape (`POST /v1/<verb>`, answer `{"ok": ...}` or `{"error": ...}`). Knows no verb: what a verb
does is the table's. Never raises to a peer: what is no SandkeeperError becomes `Internal` and is logged.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from pydantic import BaseModel, ValidationError

from sandkeeper.boxd.paths import SocketAddress
from sandkeeper.core.errors import Internal, InvalidArgument, NotFound, SandkeeperError
from sandkeeper.core.verbs import invalid_parameters

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 4 * 1024 * 1024

Verb = Callable[[Any], Awaitable[Any]]
VerbEntries = dict[str, tuple[type[BaseModel], Verb]]
"""Verbs by name, each with the model of its parameters."""


class VerbTable:
    """Verbs by name, each with the model of its parameters."""

    def __init__(self, verbs: VerbEntries) -> None:
        self._verbs = dict(verbs)

    async def call(self, verb: str, payload: Any) -> Any:
        """Check the parameters, run the verb, return its JSON-safe answer.

        Raises:
            SandkeeperError: `unknown_verb`, `invalid_parameters`, or what the verb raises.
        """
        found = self._verbs.get(verb)
        if found is None:
            raise NotFound(f"there is no verb {verb!r}", code="unknown_verb")
        model, run = found
        try:
            params = model.model_validate(payload)
        except ValidationError as error:
            raise invalid_parameters(error, verb=verb) from error
        return to_json(await run(params))


def to_json(answer: Any) -> Any:
    """Return the JSON-safe form of models and containers of models."""
    match answer:
        case BaseModel():
            return answer.model_dump(mode="json")
        case list() | tuple():
            return [to_json(item) for item in answer]
        case dict():
            return {key: to_json(value) for key, value in answer.items()}
        case _:
            return answer


class ControlServer:
    """One listening control socket.

    The socket file is replaced at start (its folder is the controller's own, 0700) and stays at close: by then it may
    be the next incarnation's.
    """

    def __init__(self, path: Path, *, table: VerbTable) -> None:
        self._path = path
        self._table = table
        self._runner: web.AppRunner | None = None
        self._address = SocketAddress(path)

    async def start(self) -> None:
        """Bind and listen. Repeating is an error of the caller."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/{verb}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        await web.SockSite(self._runner, self._bind(), backlog=512).start()

    def _bind(self) -> socket.socket:
        """Return a socket bound to the path, which nobody but this user could ever open."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(self._address.text())
        except BaseException:
            listener.close()
            raise
        finally:
            os.umask(before)
        return listener

    async def close(self) -> None:
        """Stop listening; requests being answered are cut. Repeating is safe."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._address.close()

    async def _answer(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        try:
            payload = await _payload(request, verb=verb)
            text = json.dumps({"ok": await self._table.call(verb, payload)})
        except SandkeeperError as error:
            text = json.dumps({"error": error.to_wire()})
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("verb_failed", verb=verb)
            text = json.dumps({"error": _defect(verb, error).to_wire()})
        return web.json_response(text=text)


async def _payload(request: web.Request, *, verb: str) -> Any:
    try:
        return json.loads(await request.read())
    except web.HTTPRequestEntityTooLarge as error:
        raise InvalidArgument(
            f"{verb}: the parameters have more than {MAX_BODY_BYTES} bytes",
            code="parameters_too_large",
            advice="put large data into files",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{verb}: the body is not JSON", code="invalid_parameters") from error


def _defect(verb: str, error: Exception) -> Internal:
    return Internal(
        f"{verb} failed with {type(error).__name__}",
        advice="this is a defect; the owner's log has the traceback",
        admitted="unknown",
    )
