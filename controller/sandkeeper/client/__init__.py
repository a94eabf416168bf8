"""The SDK: what programs use to keep sandboxes. `from sandkeeper import Keeper` is the front door."""
