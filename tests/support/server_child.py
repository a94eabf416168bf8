"""A directory or an owner as a plain process, without Ray: `python -m tests.support.server_child KIND CONFIG [OWNER]`.

Prints `ready` when it answers. Ends with its standard input, so that nothing outlives the test.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
import traceback

from sandkeeper.core.ids import OwnerId
from sandkeeper.owner.config import Config
from sandkeeper.owner.directory import DirectoryHost
from sandkeeper.owner.host import OwnerHost
from sandkeeper.owner.logs import log_to_file
from sandkeeper.ports import real_ports

FATAL_EXIT = 70


def end(reason: str) -> None:
    """End this process at once, as the actors do."""
    sys.stderr.write(f"ends: {reason}\n")
    sys.stderr.flush()
    os._exit(FATAL_EXIT)


async def spawn_nobody(owner_id: OwnerId) -> None:
    """The test starts the owners itself."""


def end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def serve(kind: str, config: Config, owner_id: str) -> None:
    host: DirectoryHost | OwnerHost
    if kind == "directory":
        host = DirectoryHost(config=config, ports=real_ports(), spawn_owner=spawn_nobody, fatal=end)
    else:
        host = OwnerHost(OwnerId(owner_id), config=config, ports=real_ports(), fatal=end)
    await host.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    faulthandler.enable()
    kind, config_json, owner_id = (*sys.argv[1:], "")[:3]
    config = Config.model_validate_json(config_json)
    log_to_file(config.paths.logs / f"{owner_id or kind}.log")
    threading.Thread(target=end_with_stdin, daemon=True).start()
    try:
        asyncio.run(serve(kind, config, owner_id))
    finally:
        # Threads of a half-opened journal would keep the process: it ends as an actor does.
        traceback.print_exc()
        end("it did not start")


if __name__ == "__main__":
    main()
