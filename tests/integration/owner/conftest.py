from tests.support.yard_fixtures import standing_yard, yard

__all__ = ["standing_yard", "yard"]
