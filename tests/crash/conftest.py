from tests.support.engine_fixtures import engine_url
from tests.support.private_engine import private_engines
from tests.support.yard_fixtures import standing_yard, yard

__all__ = ["engine_url", "private_engines", "standing_yard", "yard"]
