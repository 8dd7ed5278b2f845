"""Files of traces and logs: plain or gzip, whole."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class TraceError(OSError):
    """A file cannot be read as text."""


def read(path: Path) -> str:
    """Return the text of a file, decompressed if its name ends in .gz. Bytes that are not UTF-8 are replaced.

    A .gz file that was cut gives what can be read of it, without its last line.
    """
    if path.suffix != ".gz":
        return path.read_bytes().decode(errors="replace")
    parts: list[bytes] = []
    try:
        with gzip.open(path) as file:
            while part := file.read(1 << 20):
                parts.append(part)
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        whole = b"".join(parts).rpartition(b"\n")[0]
        if not whole:
            raise TraceError(f"{path}: {fault}") from fault
        return whole.decode(errors="replace")
    return b"".join(parts).decode(errors="replace")


def find(directory: Path, name: str) -> Path | None:
    """Return the file in a directory that holds the trace of this name: NAME*.jsonl or NAME*.jsonl.gz."""
    found = sorted([*directory.glob(f"{name}*.jsonl"), *directory.glob(f"{name}*.jsonl.gz")])
    return found[0] if found else None
