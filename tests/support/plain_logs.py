"""Logs of tests as plain lines: the pretty tracebacks of a terminal cost more than the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ],
    )
    yield
    structlog.reset_defaults()
