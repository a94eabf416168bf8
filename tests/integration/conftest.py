"""What the tests of boxd without its Python client share."""

from __future__ import annotations

from tests.support.raw_box_fixtures import box, boxd_binary, image, make_box

__all__ = ["box", "boxd_binary", "image", "make_box"]
