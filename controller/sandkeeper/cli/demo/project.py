"""The real input: a well-known package with its own tests, and the wheels the tests need, pinned by hash.

Owns what is fetched and the fault put into it. The fault is an exact edit: if the source is not the one pinned here,
nothing is guessed.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.client.hostile import admit_member
from sandkeeper.core.errors import DataLoss, Unavailable

PACKAGE = "more-itertools"
VERSION = "10.5.0"
SOURCE_PIN = "5482bfef7849c25dc3c6dd53a6173ae4795da2a41a80faea6700d9f5846c5da6"
WHEEL_PINS = {
    "flit_core==3.12.0": "e7a0304069ea895172e3c7bb703292e992c5d1555dd1233ab7b5621b5b69e62c",
    "iniconfig==2.3.1": "9121e2c1fdb355232495be3194c8dfe87ccc2d5dee45947b78e68f499790d7a7",
    "packaging==26.4": "81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2",
    "pluggy==1.7.0": "7dd7b0d8832ba3cb632c306926ded123429211b83641b35dc5c41ad2d34f9bec",
    "pygments==2.21.0": "2363c69b61c4a97c838da3b130dcd6468f4848992b21a82f2a63ec34377137d9",
    "pytest==9.2.0": "07acdcf88ec174f907dc01af70bf52d49b014bbab03faeeade31c96b18c2e588",
}
FAULTY_FILE = "more_itertools/more.py"
FETCH_TIMEOUT_S = 240.0

SOUND = "    for _ in islice(filler, step - 1, None, step):\n"
FAULT = "    for _ in islice(filler, step, None, step):\n"


@dataclass(frozen=True, slots=True)
class Project:
    """What goes into the sandbox.

    Attributes:
        folder: The package's source with the fault in it.
        wheels: Folder of the wheels its tests need.
        faulty_text: The faulty file as it is in `folder`.
    """

    folder: Path
    wheels: Path
    faulty_text: str


def fetch(inputs: Path) -> Project:
    """Fetch what is not in `inputs` yet and put the fault into a fresh copy of the source; blocks.

    Raises:
        Unavailable: `inputs_not_fetched`.
        DataLoss: `source_unexpected`: the source is not the one the fault was written for.
    """
    inputs.mkdir(parents=True, exist_ok=True)
    source_file = inputs / "source.txt"
    wheels_file = inputs / "wheels.txt"
    source_file.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SOURCE_PIN}\n")
    wheels_file.write_text("".join(f"{name} --hash=sha256:{pin}\n" for name, pin in WHEEL_PINS.items()))
    sources, wheels = inputs / "source", inputs / "wheels"
    if not list(sources.glob("*.tar.gz")):
        _download(source_file, folder=sources, options=["--no-binary", PACKAGE])
    if len(list(wheels.glob("*.whl"))) != len(WHEEL_PINS):
        _download(wheels_file, folder=wheels, options=["--only-binary", ":all:"])
    folder = _unpacked(next(sources.glob("*.tar.gz")), into=inputs / "project")
    return Project(folder=folder, wheels=wheels, faulty_text=_break(folder / FAULTY_FILE))


def patch_for(project: Project, replacement: str) -> str:
    """Return the unified diff that turns the fault into `replacement`, as git applies it."""
    mended = project.faulty_text.replace(FAULT, replacement)
    lines = difflib.unified_diff(
        project.faulty_text.splitlines(keepends=True),
        mended.splitlines(keepends=True),
        fromfile=f"a/{FAULTY_FILE}",
        tofile=f"b/{FAULTY_FILE}",
    )
    return "".join(lines)


def changed_lines(patch: str) -> list[str]:
    """Return the lines a unified diff takes away and adds, with their signs."""
    return [line for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def _download(requirements: Path, *, folder: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", *options, "--dest", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(f"pip had not finished after {FETCH_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise _not_fetched((done.stderr.strip().splitlines() or ["pip said nothing"])[-1])


def _not_fetched(reason: str) -> Unavailable:
    return Unavailable(
        f"the demonstration's input could not be fetched: {reason}",
        code="inputs_not_fetched",
        advice="see whether `pip download more-itertools` works on this machine",
    )


def _unpacked(archive: Path, *, into: Path) -> Path:
    """Unpack the source afresh and return its top folder."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            tar.extract(admit_member(member, folder=into), into)
    return into / f"{PACKAGE}-{VERSION}"


def _break(path: Path) -> str:
    text = path.read_text()
    if text.count(SOUND) != 1 or FAULT in text:
        raise DataLoss(
            f"{path.name} is not the file the fault was written for",
            code="source_unexpected",
            advice=f"remove {path.parent.parent} and run the demonstration again",
        )
    faulty = text.replace(SOUND, FAULT)
    path.write_text(faulty)
    return faulty
