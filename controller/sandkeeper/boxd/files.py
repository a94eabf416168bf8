"""placeholder."""

from sandkeeper.boxd.transport import Transport


class Files:
    """placeholder."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
