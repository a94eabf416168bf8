"""The last test of a session: nothing it made is left on the machine."""

from tests.support.leftovers import left_behind


def test_nothing_is_left() -> None:
    """No container, image, mount, process or folder of any installation or engine this session made."""
    assert left_behind() == {}
