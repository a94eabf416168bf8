"""`from sandkeeper.sync import Keeper`: the SDK without await. Exports only."""

from sandkeeper.client.sync import *  # noqa: F403  # the list of names is the module's own
from sandkeeper.client.sync import __all__ as __all__
