"""The tables of an owner's file and of the catalogue.

Owns columns and indexes; tenant and machine are in every table. Documents (`document`, `event`, `details`,
`facts`) are JSON of the pydantic models in `core` and in this room; the columns beside them repeat what is
looked up. Moments are UTC text of fixed width, so their text order is their time order.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, MetaData, Table, Text, text

OWNER_TABLES = MetaData()
CATALOGUE_TABLES = MetaData()

sandboxes = Table(
    "sandboxes",
    OWNER_TABLES,
    Column("sandbox_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("name", Text),
    Column("phase", Text, nullable=False),
    Column("birth_id", Text),
    Column("pending_id", Text),
    Column("given_up", Text, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("document", Text, nullable=False),
    Index("sandboxes_by_phase", "phase", "updated_at"),
)

Index("sandboxes_by_given_up", sandboxes.c.given_up, sqlite_where=sandboxes.c.given_up != text("'[]'"))

events = Table(
    "events",
    OWNER_TABLES,
    Column("seq", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("sandbox_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("event", Text),
    Column("details", Text, nullable=False),
    Index("events_by_sandbox", "sandbox_id", "seq"),
)

snapshots = Table(
    "snapshots",
    OWNER_TABLES,
    Column("snapshot_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("sandbox_id", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("document", Text, nullable=False),
    Index("snapshots_by_sandbox", "sandbox_id"),
)

answers = Table(
    "answers",
    OWNER_TABLES,
    Column("tenant_id", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("machine_id", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("document", Text, nullable=False),
    Index("answers_by_age", "at"),
)

states = Table(
    "states",
    OWNER_TABLES,
    Column("sandbox_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("document", Text, nullable=False),
)
"""Key-value state beside the box."""

alarms = Table(
    "alarms",
    OWNER_TABLES,
    Column("sandbox_id", Text, primary_key=True),
    Column("alarm_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("set_at", Text, nullable=False),
    Column("settled_at", Text),
    Column("payload", Text, nullable=False),
)
Index("alarms_by_due", alarms.c.at, sqlite_where=alarms.c.state == text("'pending'"))
Index("alarms_by_end", alarms.c.settled_at, sqlite_where=alarms.c.settled_at.is_not(None))

owners = Table(
    "owners",
    CATALOGUE_TABLES,
    Column("owner_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("pid", Integer),
    Column("start_ticks", Integer),
    Column("created_at", Text, nullable=False),
)

reservations = Table(
    "reservations",
    CATALOGUE_TABLES,
    Column("tenant_id", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("machine_id", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("name", Text),
    Column("sandbox_id", Text, nullable=False, unique=True),
    Column("owner_id", Text, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("parameters", Text),
    Column("at", Text, nullable=False),
    Column("released_at", Text),
)
Index(
    "reservations_by_name",
    reservations.c.tenant_id,
    reservations.c.name,
    unique=True,
    sqlite_where=reservations.c.released_at.is_(None) & reservations.c.name.is_not(None),
)

tombstones = Table(
    "tombstones",
    CATALOGUE_TABLES,
    Column("snapshot_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("at", Text, nullable=False),
)

retentions = Table(
    "retentions",
    CATALOGUE_TABLES,
    Column("snapshot_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("keep_s", Float),
    Column("expires_at", Text),
    Column("is_pinned", Integer, nullable=False),
    Column("at", Text, nullable=False),
)

imports = Table(
    "imports",
    CATALOGUE_TABLES,
    Column("snapshot_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("request_id", Text, nullable=False, unique=True),
    Column("image", Text, nullable=False),
    Column("is_done", Integer, nullable=False),
    Column("document", Text, nullable=False),
    Column("at", Text, nullable=False),
)
"""Snapshots that came from archives: their rows are in no owner's file."""

images = Table(
    "images",
    CATALOGUE_TABLES,
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("machine_id", Text, nullable=False),
    Column("image_id", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("at", Text, nullable=False),
)

policies = Table(
    "policies",
    CATALOGUE_TABLES,
    Column("version", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("at", Text, nullable=False),
)

changes = Table(
    "changes",
    CATALOGUE_TABLES,
    Column("seq", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("at", Text, nullable=False),
)
"""What was changed in the catalogue, in order; its last seq is what the high-water mark remembers."""
