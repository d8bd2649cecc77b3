"""Build tiny Debian packages."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path


def tar_of(files: Mapping[str, bytes], packing: str = "xz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{packing}") as archive:
        folder = tarfile.TarInfo("./usr")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def ar_of(members: Mapping[str, bytes]) -> bytes:
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        parts.append(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
        parts.append(content + b"\n" * (len(content) % 2))
    return b"".join(parts)


def deb_of(
    files: Mapping[str, bytes],
    version: str = "1.0",
    packing: str = "xz",
    repack: Callable[[bytes], bytes] = bytes,
    ending: str | None = None,
) -> bytes:
    ending = f".{packing}" * bool(packing) if ending is None else ending
    control = tar_of({"control": f"Package: toy\nVersion: {version}\nArchitecture: all\n".encode()}, packing)
    return ar_of(
        {
            "debian-binary": b"2.0\n",
            f"control.tar{ending}": repack(control),
            f"data.tar{ending}": repack(tar_of(files, packing)),
        }
    )


def page(*paragraphs: str) -> bytes:
    shown = "\n".join(paragraphs)
    head = '<!DOCTYPE html><html><head><title>A page</title></head><body><header id="Top"><p>Help</p></header>'
    return f'{head}<div id="DisplayArea">{shown}</div></body></html>'.encode()


def write_help(folder: Path, language: str, pages: Mapping[str, bytes], version: str = "4:7.4-1") -> Path:
    """Write a help package with the file names and layout that Debian uses."""
    shown = {"en-us": "en-US", "pt-br": "pt-BR"}.get(language, language)
    files = {f"usr/share/libreoffice/help/{shown}/text/{name}": content for name, content in pages.items()}
    files[f"usr/share/doc/libreoffice-help-{language}/copyright"] = b"MPL-2.0"
    folder.mkdir(exist_ok=True)
    path = folder / f"libreoffice-help-{language}_{version.replace(':', '%3a')}_all.deb"
    path.write_bytes(deb_of(files, version))
    return path
