"""Fixtures that several kinds of tests share, and the watch over what a session leaves behind."""

from tests.support.leftovers import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
)
from tests.support.up import installation

__all__ = [
    "installation",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
]
