"""Files of traces and logs: plain or gzip, whole."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


# Window of gzip's format, header and check included.
_GZIP = 16 + zlib.MAX_WBITS


class TraceError(OSError):
    """A file cannot be read as text."""


def read(path: Path) -> str:
    """Return the text of a file, decompressed if its name ends in .gz. Bytes that are not UTF-8 are replaced.

    A .gz file that was cut gives what can be read of it, without its last line. Raises TraceError if that is nothing.
    """
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw.decode(errors="replace")
    parts, fault = [], ""
    try:
        while raw and not fault:
            member = zlib.decompressobj(_GZIP)
            parts.append(member.decompress(raw))
            parts.append(member.flush())
            fault = "" if member.eof else "it was cut"
            raw = member.unused_data
    except zlib.error as broken:
        fault = str(broken)
    whole = b"".join(parts)
    if fault:
        whole = whole.rpartition(b"\n")[0]
        if not whole:
            raise TraceError(f"{path}: {fault}")
    return whole.decode(errors="replace")


def find(directory: Path, name: str) -> Path | None:
    """Return the file in a directory that holds the trace of this name: NAME*.jsonl or NAME*.jsonl.gz."""
    found = sorted([*directory.glob(f"{name}*.jsonl"), *directory.glob(f"{name}*.jsonl.gz")])
    return found[0] if found else None
