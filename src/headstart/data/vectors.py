"""Vectors on disk: a .npy that grows row by row, and files that come into place together."""

from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from headstart.atomic_io import write_with


class GrowingArray:
    """A .npy file that rows are added to; its header is put right when it is closed."""

    def __init__(self, path: Path, row: tuple[int, ...], kind: type[np.generic]):
        self.row, self.kind, self.count = row, np.dtype(kind), 0
        self._handle: IO[bytes] = open(path, "wb")  # noqa: SIM115
        self._header()
        self._start = self._handle.tell()

    def _header(self) -> None:
        layout = {"descr": self.kind.str, "fortran_order": False, "shape": (self.count, *self.row)}
        np.lib.format.write_array_header_1_0(self._handle, layout)  # leaves room for a growing count

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""
        assert rows.shape[1:] == self.row, (rows.shape, self.row)
        self._handle.write(np.ascontiguousarray(rows, dtype=self.kind).tobytes())
        self.count += len(rows)

    def __enter__(self) -> "GrowingArray":
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self._handle.seek(0)
            self._header()
            assert self._handle.tell() == self._start, "the header grew over the rows"
        finally:
            self._handle.close()


def write_together(paths: list[Path], write: Callable[[list[Path]], None]) -> None:
    """Let `write` fill a file beside each path, then sync and rename them all, the first of them last."""

    def inner(left: list[Path], parts: list[Path]) -> None:
        if left:
            write_with(left[0], lambda beside: inner(left[1:], [*parts, beside]))
        else:
            write(parts)

    inner(paths, [])
