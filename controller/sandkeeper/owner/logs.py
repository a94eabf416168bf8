"""Where a process of ours writes its log: one JSON object a line, in the state folder."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

MAX_BYTES = 16 * 1024 * 1024
BACKUPS = 2


def log_to_file(path: Path) -> None:
    """Send this process's structured log to `path`, rotated; once per process."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=BACKUPS)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("sandkeeper")
    logger.setLevel(logging.INFO)
    logger.handlers = [handler]
    logger.propagate = False
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
