"""From boxd's JSON about runs to typed events, checked.

Owns the decoding of run events and listings. Pure: no I/O. What breaks the contract raises `BadFrame`; nothing is
guessed.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, cast

from sandkeeper.boxd.events import (
    Outcome,
    RunEnded,
    RunEvent,
    RunListing,
    RunLost,
    RunOutput,
    RunStarted,
    RunUsage,
    Stream,
    TimeoutReason,
)
from sandkeeper.boxd.wire import BadFrame
from sandkeeper.core.ids import RunId

STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "pty")
_REASONS: tuple[TimeoutReason, ...] = ("deadline", "quiet", "cpu")
_OUTCOMES: tuple[Outcome, ...] = ("exited", "signaled", "timeout")
_MAX_NUMBER = 2**53
_MAX_PIDS = 4096


class RunEventReader:
    """Checks one stream of run events in order: start first, offsets without holes, one end."""

    def __init__(self, *, offsets: Mapping[Stream, int]) -> None:
        self.is_started = False
        self._offsets: dict[Stream, int] = {stream: offsets.get(stream, 0) for stream in STREAMS}

    def read(self, document: Mapping[str, Any]) -> RunEvent | None:
        """Return the event in one message; None for a sign of life or a kind we do not know.

        Raises:
            BadFrame: It breaks the contract.
        """
        event = _object(document, "event")
        if "data" in event:
            self._need_start()
            return self._data(_object(event, "data"))
        if "start" in event:
            return self._start(_object(event, "start"))
        if "end" in event:
            self._need_start()
            return _ended(_object(event, "end"))
        return None

    def _need_start(self) -> None:
        if not self.is_started:
            raise BadFrame("an event before the start event")

    def _start(self, start: Mapping[str, Any]) -> RunStarted:
        if self.is_started:
            raise BadFrame("two start events")
        self.is_started = True
        ours = _object(start, "sandkeeper")
        return RunStarted(
            pid=_number(start, "pid"),
            run_id=_run_id(ours),
            generation=_number(ours, "generation"),
            attached=_flag(ours, "attached"),
        )

    def _data(self, data: Mapping[str, Any]) -> RunEvent:
        ours = _object(data, "sandkeeper")
        for stream in STREAMS:
            text = data.get(stream)
            if text is None:
                continue
            if not isinstance(text, str):
                raise BadFrame(f"{stream} is not base64 text")
            try:
                content = binascii.a2b_base64(text, strict_mode=True)
            except (binascii.Error, ValueError) as error:
                raise BadFrame(f"{stream} is not base64: {error}") from error
            offset = self._offset(ours, stream=stream)
            self._offsets[stream] = offset + len(content)
            return RunOutput(stream, offset, content)
        lost = ours.get("stream")
        if lost not in STREAMS:
            raise BadFrame("a data event without data")
        stream = cast("Stream", lost)
        offset, lost_bytes = self._offsets[stream], _number(ours, "lostBytes")
        self._offsets[stream] += lost_bytes
        self._offset(ours, stream=stream)  # boxd names the place where output goes on
        return RunLost(stream, offset, lost_bytes)

    def _offset(self, ours: Mapping[str, Any], *, stream: Stream) -> int:
        expected = self._offsets[stream]
        offset = _number(ours, "offset") if "offset" in ours else expected
        if offset != expected:
            raise BadFrame(f"{stream} at {offset}, expected at {expected}")
        return offset


def not_stopped_in(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the pids a tree kill could not stop."""
    return _pids(_object(answer, "sandkeeper"))


def runs_in(answer: Mapping[str, Any]) -> tuple[RunListing, ...]:
    """Return the listing in boxd's List answer."""
    listed = answer.get("processes") or []
    if not isinstance(listed, list):
        raise BadFrame("processes is not a list")
    runs: list[RunListing] = []
    for entry in listed:
        if not isinstance(entry, dict):
            raise BadFrame("a process is not an object")
        config = _object(entry, "config")
        arguments = config.get("args") or []
        if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
            raise BadFrame("args is not a list of texts")
        ours = _object(entry, "sandkeeper")
        argv = (_text(config, "cmd") or "", *cast("list[str]", arguments))
        runs.append(
            RunListing(
                pid=_number(entry, "pid"),
                run_id=_run_id(ours),
                argv=argv,
                cwd=_text(config, "cwd"),
                tag=_text(entry, "tag"),
                has_terminal=_flag(ours, "pty"),
                detached=_flag(ours, "detached"),
            )
        )
    return tuple(runs)


def _ended(end: Mapping[str, Any]) -> RunEnded:
    ours = _object(end, "sandkeeper")
    outcome = ours.get("outcome")
    if outcome not in _OUTCOMES:
        raise BadFrame(f"outcome {outcome!r:.40}")
    is_exited = outcome == "exited"
    exit_code = _number(end, "exitCode") if is_exited else None
    if is_exited and (not _flag(end, "exited") or exit_code is None or exit_code > 255):
        raise BadFrame("an exit that is none")
    return RunEnded(
        outcome=cast("Outcome", outcome),
        exit_code=exit_code,
        signal=_number(ours, "signal"),
        oom_killed=_flag(ours, "oomKilled"),
        stdout_size_bytes=_number(ours, "stdoutBytes"),
        stderr_size_bytes=_number(ours, "stderrBytes"),
        duration_ms=_number(ours, "durationMs"),
        not_stopped=_pids(ours),
        reason=_reason(ours) if outcome == "timeout" else "",
        oom_kills=_number(ours, "oomKills"),
        usage=_usage(_object(ours, "rusage")),
        pty_size_bytes=_number(ours, "ptyBytes"),
    )


def _reason(ours: Mapping[str, Any]) -> TimeoutReason:
    reason = ours.get("reason", "deadline")
    if reason not in _REASONS:
        raise BadFrame(f"reason {reason!r:.40}")
    return cast("TimeoutReason", reason)


def _usage(rusage: Mapping[str, Any]) -> RunUsage:
    return RunUsage(
        user_ms=_number(rusage, "userMs"),
        system_ms=_number(rusage, "systemMs"),
        max_rss_bytes=_number(rusage, "maxRssBytes"),
    )


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadFrame(f"{key} is not an object")
    return value


def _number(document: Mapping[str, Any], key: str) -> int:
    """Return a count; absent means 0, as protobuf's JSON leaves defaults out."""
    value = document.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_NUMBER:
        raise BadFrame(f"{key} is not a count")
    return value


def _flag(document: Mapping[str, Any], key: str) -> bool:
    value = document.get(key, False)
    if not isinstance(value, bool):
        raise BadFrame(f"{key} is not true or false")
    return value


def _text(document: Mapping[str, Any], key: str) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise BadFrame(f"{key} is not text")
    return value


def _run_id(ours: Mapping[str, Any]) -> RunId | None:
    text = _text(ours, "runId")
    return RunId(text) if text else None


def _pids(ours: Mapping[str, Any]) -> tuple[int, ...]:
    pids = ours.get("notStopped") or []
    if not isinstance(pids, list) or len(pids) > _MAX_PIDS:
        raise BadFrame("notStopped is not a list of pids")
    if not all(isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 for pid in pids):
        raise BadFrame("notStopped is not a list of pids")
    return tuple(pids)
