"""Installs Debian packages that set-up needs.

Owns the one way `apt-get` is called: not interactive, waiting for a lock held by somebody else, lists fetched
first, nothing recommended. It never removes or upgrades anything by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandkeeper.containers.host import Host, is_debian_like
from sandkeeper.core.errors import FailedPrecondition, Unavailable

UPDATE_TIMEOUT_S = 600.0
INSTALL_TIMEOUT_S = 1800.0
_OPTIONS = ("-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


def can_install(host: Host) -> bool:
    """Say whether packages can be installed here: as root, on Debian or a relative, with apt-get."""
    return host.is_root() and is_debian_like(host.os_release()) and host.has_command("apt-get")


def install_packages(host: Host, *, names: Sequence[str], purpose: str) -> None:
    """Install `names` (a repeat is safe).

    Args:
        host: The machine.
        names: Package names.
        purpose: What they are for, in a few words; it is part of the error.

    Raises:
        FailedPrecondition: `packages_not_installable`: not root, or not a Debian-like machine.
        Unavailable: `package_install_failed`: apt-get refused; the end of its output is in the message.
    """
    wanted = " ".join(names)
    if not can_install(host):
        raise FailedPrecondition(
            f"{wanted} missing ({purpose}) and cannot be installed from here: that needs root on Debian or Ubuntu",
            code="packages_not_installable",
            advice=f"install it yourself (on Debian and Ubuntu: `sudo apt-get install {wanted}`) and try again",
        )
    # An old or absent list is the usual reason for a failed install; a failed update is not fatal by itself.
    updated = host.run(["apt-get", "update", *_OPTIONS[1:]], timeout_s=UPDATE_TIMEOUT_S)
    installed = host.run(
        ["apt-get", "install", "--no-install-recommends", *_OPTIONS, *names], timeout_s=INSTALL_TIMEOUT_S
    )
    if installed.exit_code != 0:
        update_note = "" if updated.exit_code == 0 else f"; apt-get update had failed too: {updated.tail}"
        raise Unavailable(
            f"apt-get install {wanted} ({purpose}) ended with {installed.exit_code}: {installed.tail}{update_note}",
            code="package_install_failed",
            advice="look at the apt output above; check the package sources and the network",
        )
