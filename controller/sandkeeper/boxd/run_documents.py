"""What is sent to start or name a run, and the outcome made of what came back. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from sandkeeper.boxd.events import RunEnded, RunLimits, RunOutcome, RunStarted, TerminalSize
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import RunId, is_run_id

MAX_TERMINAL = 4096
STDIN_LIMIT_BYTES = 700 * 1024
"""Most stdin a start carries; its frame must stay under 1 MiB in base64. Longer input goes through a file."""


def start_document(
    argv: Sequence[str],
    *,
    run_id: RunId,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    stdin: bytes | None,
    stdin_open: bool,
    timeout_ms: int | None,
    max_output_bytes: int | None,
    detached: bool,
    stdout_offset: int,
    stderr_offset: int,
    pty_offset: int = 0,
    keeps_awake: bool | None = None,
    limits: RunLimits | None = None,
    terminal: TerminalSize | None = None,
) -> dict[str, Any]:
    """Return the message that starts or attaches to a run.

    Raises:
        InvalidArgument: `argv_invalid`, `run_id_invalid`, `stdin_too_large`.
    """
    if not argv or any("\0" in word for word in argv):
        raise InvalidArgument(f"run {run_id}: argv is empty or holds a zero byte", code="argv_invalid")
    if not is_run_id(run_id):
        raise InvalidArgument(f"run id {run_id!r}", code="run_id_invalid")
    if stdin is not None and len(stdin) > STDIN_LIMIT_BYTES:
        raise InvalidArgument(
            f"run {run_id}: {len(stdin)} bytes of stdin, at most {STDIN_LIMIT_BYTES}",
            code="stdin_too_large",
            advice="write the input to a file in the sandbox",
        )
    process: dict[str, Any] = {"cmd": argv[0], "args": list(argv[1:]), "envs": dict(env or {})}
    if cwd is not None:
        process["cwd"] = cwd
    kind = "stream" if stdin_open else "none" if stdin is None else "data"
    ours: dict[str, Any] = {
        "runId": run_id,
        "detached": detached,
        "stdoutOffset": stdout_offset,
        "stderrOffset": stderr_offset,
    }
    if terminal is None:
        ours["stdin"] = kind
    if stdin is not None:
        ours["stdinData"] = b64encode(stdin).decode()
    if user is not None:
        ours["user"] = user
    if timeout_ms is not None:
        ours["timeoutMs"] = timeout_ms
    if max_output_bytes is not None:
        ours["maxOutputBytes"] = max_output_bytes
    if keeps_awake is not None:
        ours["keepsAwake"] = keeps_awake
    if limits is not None and limits.quiet_timeout_ms is not None:
        ours["quietTimeoutMs"] = limits.quiet_timeout_ms
    if limits is not None and limits.cpu_limit_ms is not None:
        ours["cpuLimitMs"] = limits.cpu_limit_ms
    document = {"process": process, "stdin": stdin_open, "sandkeeper": ours}
    if terminal is not None:
        ours["ptyOffset"] = pty_offset
        document["pty"] = pty_document(terminal)
    return document


def pty_document(size: TerminalSize) -> dict[str, Any]:
    """Return the message part that sets a terminal's size.

    Raises:
        InvalidArgument: `terminal_size_invalid`: columns and rows are 1 to 4096.
    """
    if not (1 <= size.cols <= MAX_TERMINAL and 1 <= size.rows <= MAX_TERMINAL):
        raise InvalidArgument(
            f"a terminal has 1 to {MAX_TERMINAL} columns and rows, not {size.cols} and {size.rows}",
            code="terminal_size_invalid",
        )
    return {"size": {"cols": size.cols, "rows": size.rows}}


def selector(run_id: RunId) -> dict[str, Any]:
    """Return how a request names a run."""
    return {"sandkeeper": {"runId": run_id}}


def outcome_of(
    run_id: RunId,
    *,
    started: RunStarted | None,
    ended: RunEnded,
    kept: Mapping[str, bytearray],
    has_loss: bool,
) -> RunOutcome:
    """Return the outcome of a run that ended, with what was kept of its output."""
    stdout, stderr = bytes(kept["stdout"]), bytes(kept["stderr"])
    return RunOutcome(
        run_id=run_id,
        generation=started.generation if started else 0,
        pid=started.pid if started else 0,
        attached=started.attached if started else False,
        exit_code=ended.exit_code,
        outcome=ended.outcome,
        signal=ended.signal,
        oom_killed=ended.oom_killed,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        truncated=has_loss or ended.stdout_size_bytes > len(stdout) or ended.stderr_size_bytes > len(stderr),
        stdout_size_bytes=ended.stdout_size_bytes,
        stderr_size_bytes=ended.stderr_size_bytes,
        duration_ms=ended.duration_ms,
        not_stopped=ended.not_stopped,
        reason=ended.reason,
        oom_kills=ended.oom_kills,
        usage=ended.usage,
    )
