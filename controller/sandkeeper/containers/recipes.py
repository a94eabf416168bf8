"""The shipped images as recipes: which folder, on which parent, under which tag.

Owns the content address of an image: the same folder on the same parent is the same tag, so what exists need not be
built. It reads files only; it never speaks to an engine.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.core.errors import FailedPrecondition, InvalidArgument

SMOKE_CHECK = "smoke.sh"
_PACKAGE = Path(__file__).resolve().parent.parent
_PACKAGED_FOLDER = _PACKAGE / "_images"
_CHECKOUT_FOLDER = _PACKAGE.parent.parent / "sandbox_images"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a shipped image is built.

    Attributes:
        name: What users call it; also its folder.
        parent: The shipped image it is built on; None for the root image.
    """

    name: str
    parent: str | None

    @property
    def repository(self) -> str:
        """The name of its tags at the engine."""
        return f"sandkeeper/{self.name}"


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="slim", parent=None),
        Recipe(name="base", parent="slim"),
        Recipe(name="build", parent="base"),
    )
}
"""All shipped images; a parent comes before its children."""

DEFAULT_IMAGES = ("slim", "base", "build")


def with_parents(names: Iterable[str]) -> list[Recipe]:
    """Return the recipes of `names` and of all they stand on, parents first.

    Raises:
        InvalidArgument: `image_unknown`.
    """
    needed: set[str] = set()
    for name in names:
        current: str | None = name
        while current is not None:
            if current not in RECIPES:
                raise InvalidArgument(
                    f"there is no shipped image {current!r}",
                    code="image_unknown",
                    advice=f"the shipped images are {', '.join(RECIPES)}",
                )
            needed.add(current)
            current = RECIPES[current].parent
    return [recipe for name, recipe in RECIPES.items() if name in needed]


def images_folder(*, packaged: Path = _PACKAGED_FOLDER, checkout: Path = _CHECKOUT_FOLDER) -> Path:
    """Return the folder with one folder per image: that of the wheel, else that of the source checkout.

    Raises:
        FailedPrecondition: `image_recipes_missing`.
    """
    for folder in (packaged, checkout):
        if (folder / "slim" / "Dockerfile").is_file():
            return folder
    raise FailedPrecondition(
        "the image recipes are not in this installation",
        code="image_recipes_missing",
        advice="install a wheel of sandkeeper, or work from a full source checkout",
    )


def content_id(folder: Path, *, parent_id: str) -> str:
    """Return 16 hexadecimal digits that stand for the folder's content on the parent image `parent_id`."""
    digest = hashlib.sha256(parent_id.encode())
    for path in _files(folder):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def build_context(folder: Path) -> io.BytesIO:
    """Return the folder as a tar stream for the engine's build, the same bytes for the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _files(folder):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.suffix == ".sh" else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    buffer.seek(0)
    return buffer


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
