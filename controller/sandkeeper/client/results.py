"""What the SDK hands back, under the names it is known by.

Pure names. The documents are the core's views: one shape for the control sockets, the SDK and `--json`.
"""

from __future__ import annotations

from sandkeeper.client.run_result import RunResult, RunResultOutcome
from sandkeeper.core.snapshot_verbs import Exported, GarbageReport
from sandkeeper.core.views import EventView, SandboxView, SnapshotView

__all__ = ["Description", "Event", "Exported", "GarbageReport", "RunResult", "RunResultOutcome", "Snapshot"]

Snapshot = SnapshotView
"""An immutable filesystem image of a sandbox: id, name, size_bytes, delta_bytes, base_digest, parent, ..."""

Event = EventView
"""One line of a sandbox's journal: seq, sandbox_id, at, kind, details."""

Description = SandboxView
"""A sandbox as its owner recorded it when asked."""
