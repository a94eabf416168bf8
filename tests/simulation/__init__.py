"""Seeded schedules of owner, journal and engine in one process, in virtual time."""
