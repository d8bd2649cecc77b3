"""Debian packages: downloaded by apt without being installed, and read without being unpacked to disk."""

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from headstart.data.lines import CORRUPT, reading
from headstart.errors import DataError

MAGIC, HEADER = b"!<arch>\n", 60
PACKED = ("", ".gz", ".xz", ".bz2", ".lzma")  # what tarfile reads; dpkg-deb reads the rest
BROKEN = (tarfile.TarError, *CORRUPT)
UPDATE = "fetch its lists first: sudo apt-get update"


def find_packages(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """The newest .deb file of each package in a folder."""
    with reading(folder):
        files = sorted(folder.iterdir(), key=lambda path: (_version_key(path.name), path.name))
    found = {path.name.partition("_")[0]: path for path in files if path.suffix == ".deb"}
    for name in names:
        if name not in found:
            raise DataError(
                f"{folder} holds no file {name}_VERSION.deb", hint=f"get it there: apt-get download {name}"
            )
    return {name: found[name] for name in names}


def download_packages(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Each package as apt finds it, downloaded into `folder`; nothing is installed and no root is needed."""
    if shutil.which("apt-get") is None:
        raise DataError(
            "this set is made from Debian packages, and there is no apt-get here",
            hint="do it on Debian or Ubuntu, or give the folder of the downloaded .deb files with --packages",
        )
    done = _apt("apt-get", "-o", "Acquire::Retries=2", "download", *names, folder=folder)
    if done.returncode:
        problems = re.findall(r"^E: (.+)$", done.stderr, flags=re.MULTILINE) or [done.stderr.strip()]
        is_unknown = problems[0].startswith("Unable to locate")
        raise DataError(
            f"apt cannot download {' '.join(names)}: {problems[0]}",
            hint=f"if apt does not know it, {UPDATE}" if is_unknown else "check the network, then try again",
        )
    return find_packages(names, folder)


def known_packages(prefix: str) -> list[str]:
    """The packages that apt knows by the beginning of their name, none when apt is absent."""
    if shutil.which("apt-cache") is None:
        return []
    return sorted(_apt("apt-cache", "pkgnames", prefix).stdout.split())


def package_version(path: Path) -> str:
    """The version that a .deb file says it is."""
    control = next((content for name, content in _files(path, "control") if name == "control"), b"")
    found = re.search(r"^Version:\s*(\S+)", control.decode("utf-8", "replace"), flags=re.MULTILINE)
    if found is None:
        raise DataError(f"{path} does not say its version", hint="download it again")
    return found[1]


def package_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The path and content of each plain file in a .deb, in the package's order."""
    return _files(path, "data")


def _version_key(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _apt(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}  # the messages are read
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


def _files(path: Path, part: str) -> Iterator[tuple[str, bytes]]:
    try:
        with reading(path):
            tar = _tar(path, part)
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:*") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()
    except BROKEN as error:
        raise DataError(
            f"{path} is no whole Debian package: {error or type(error).__name__}", hint="download it again"
        ) from None


def _tar(path: Path, part: str) -> bytes:
    """The control or data archive of a .deb, in a form that tarfile reads."""
    parts = {name: content for name, content in _members(path) if name.startswith(f"{part}.tar")}
    name, content = next(iter(parts.items()), ("", b""))
    if not name:
        raise tarfile.ReadError(f"it has no {part}.tar")
    if name.removeprefix(f"{part}.tar") in PACKED:
        return content
    flag = {"control": "--ctrl-tarfile", "data": "--fsys-tarfile"}[part]
    if shutil.which("dpkg-deb") is None:
        raise DataError(
            f"{path} is packed in a way that needs dpkg-deb ({name})", hint="do it on Debian or Ubuntu"
        )
    done = subprocess.run(["dpkg-deb", flag, str(path)], capture_output=True, check=False)
    if done.returncode:
        raise tarfile.ReadError(done.stderr.decode("utf-8", "replace").strip())
    return done.stdout


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The members of an ar archive."""
    with open(path, "rb") as handle:
        if handle.read(len(MAGIC)) != MAGIC:
            raise tarfile.ReadError("it is no ar archive")
        while header := handle.read(HEADER):
            size = header[48:58].decode("ascii", "replace").strip()
            if not (header.endswith(b"`\n") and size.isdecimal()):
                raise tarfile.ReadError("it is cut short or damaged")
            content = handle.read(int(size))
            if len(content) < int(size):
                raise tarfile.ReadError("it is cut short")
            handle.read(int(size) % 2)  # members begin at even places
            yield header[:16].decode("ascii", "replace").strip().removesuffix("/"), content
