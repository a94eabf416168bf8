"""Fixtures that several kinds of tests share."""

from tests.support.up import installation

__all__ = ["installation"]
