"""The root image that all shipped images stand on.

Owns where it comes from: a registry image pinned by digest where the operator names one, else a small system made
here from the machine's own package sources. It never takes a registry image by a tag alone.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound

from sandkeeper.containers import apt
from sandkeeper.containers.apt_sources import AptSource, read_sources, sources_of_distribution
from sandkeeper.containers.host import Host, is_debian_like
from sandkeeper.containers.progress import OnProgress, Progress
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument, Unavailable

STEP = "image:root"
ROOT_REPOSITORY = "sandkeeper/root"
BOOTSTRAP_TIMEOUT_S = 1200.0

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNWANTED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
_BOOTSTRAP_OPTIONS = (
    "--variant=minbase",
    "--include=ca-certificates",
    *(f"--dpkgopt=path-exclude={pattern}" for pattern in _UNWANTED),
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    # What belongs to this machine and not to an image.
    '--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/machine-id"',
)


@dataclass(frozen=True, slots=True)
class RootImage:
    """A root image that is at the engine.

    Attributes:
        image_id: Its digest id at the engine (`sha256:...`).
    """

    image_id: str


def ensure_root_image(
    client: docker.DockerClient, *, host: Host, pinned: str | None, on_progress: OnProgress
) -> RootImage:
    """Return the root image, fetching or making it if the engine has none; a repeat is quick.

    Args:
        client: The engine.
        host: The machine, for making one.
        pinned: A registry image `name@sha256:<64 hex>`, or None to make one here.
        on_progress: Told what is done.

    Raises:
        InvalidArgument: `root_image_not_pinned`.
        Unavailable: `root_image_unreachable`, `root_image_failed`, `package_install_failed`.
        FailedPrecondition: `root_image_unavailable`, `packages_not_installable`.
    """
    if pinned is not None:
        return _pull(client, pinned=pinned, on_progress=on_progress)
    codename, sources = _distribution(host)
    tag = f"{ROOT_REPOSITORY}:{codename}-{_recipe_id(codename, sources=sources)}"
    existing = _image_id(client, reference=tag)
    if existing is not None:
        return RootImage(image_id=existing)
    on_progress(
        Progress(step=STEP, message=f"making a root system ({codename}) from this machine's package sources")
    )
    if not host.has_command("mmdebstrap"):
        apt.install_packages(host, names=["mmdebstrap"], purpose="making the root image")
    image_id = _bootstrap(client, host=host, codename=codename, sources=sources, tag=tag)
    on_progress(Progress(step=STEP, message=f"made {tag}", done=True))
    return RootImage(image_id=image_id)


def check_pin(reference: str) -> None:
    """Refuse a registry image that is not pinned by its digest.

    Raises:
        InvalidArgument: `root_image_not_pinned`.
    """
    name, _, digest = reference.partition("@sha256:")
    has_tag = ":" in name.rpartition("/")[2]
    if not name or has_tag or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise InvalidArgument(
            f"root image {reference!r} is not pinned by a digest alone",
            code="root_image_not_pinned",
            advice="write it as name@sha256:<64 hexadecimal digits>",
        )


def _pull(client: docker.DockerClient, *, pinned: str, on_progress: OnProgress) -> RootImage:
    check_pin(pinned)
    existing = _image_id(client, reference=pinned)
    if existing is not None:
        return RootImage(image_id=existing)
    on_progress(Progress(step=STEP, message=f"fetching {pinned}"))
    name, _, digest = pinned.partition("@")
    try:
        client.api.pull(name, tag=digest)
    except DockerException as error:
        raise Unavailable(
            f"root image {pinned} could not be fetched: {error}",
            code="root_image_unreachable",
            advice="check the registry, or leave the root image unset to make one from the package sources",
        ) from error
    fetched = _image_id(client, reference=pinned)
    if fetched is None:
        raise Unavailable(f"root image {pinned} was fetched but is not there", code="root_image_unreachable")
    on_progress(Progress(step=STEP, message=f"fetched {pinned}", done=True))
    return RootImage(image_id=fetched)


def _distribution(host: Host) -> tuple[str, list[AptSource]]:
    release = host.os_release()
    codename = release.get("VERSION_CODENAME", "")
    sources = sources_of_distribution(read_sources(), codename=codename) if codename else []
    if not is_debian_like(release) or not sources:
        raise FailedPrecondition(
            "a root image can be made here only on Debian or Ubuntu with package sources over HTTP",
            code="root_image_unavailable",
            advice="name a registry image pinned by digest in SANDKEEPER_ROOT_IMAGE (Debian or Ubuntu with apt)",
        )
    return codename, sources


def _recipe_id(codename: str, *, sources: list[AptSource]) -> str:
    recipe = "\n".join([codename, *_BOOTSTRAP_OPTIONS, *(source.line for source in sources)])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def _bootstrap(
    client: docker.DockerClient, *, host: Host, codename: str, sources: list[AptSource], tag: str
) -> str:
    """Make a root system in a tar file and import it; the tag exists only once all of it is there."""
    with tempfile.TemporaryDirectory(prefix="sandkeeper-root-") as folder:
        archive = Path(folder) / "root.tar"
        lines = [source.line for source in sources]
        made = host.run(
            ["mmdebstrap", *_BOOTSTRAP_OPTIONS, codename, str(archive), *lines], timeout_s=BOOTSTRAP_TIMEOUT_S
        )
        if made.exit_code != 0:
            raise Unavailable(
                f"mmdebstrap ended with {made.exit_code}: {made.tail}",
                code="root_image_failed",
                advice="check the package sources and the network; as another user than root, user namespaces",
            )
        repository, _, version = tag.partition(":")
        with archive.open("rb") as stream:
            client.api.import_image_from_data(
                stream, repository=repository, tag=version, changes=[f"ENV PATH={_PATH}", 'CMD ["/bin/bash"]']
            )
    image_id = _image_id(client, reference=tag)
    if image_id is None:
        raise Unavailable(f"the engine imported {tag} but does not have it", code="root_image_failed")
    return image_id


def _image_id(client: docker.DockerClient, *, reference: str) -> str | None:
    try:
        return str(client.api.inspect_image(reference)["Id"])
    except ImageNotFound:
        return None
