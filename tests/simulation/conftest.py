from tests.support.plain_logs import plain_logs

__all__ = ["plain_logs"]
