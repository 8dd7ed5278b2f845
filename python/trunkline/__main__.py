"""The command `trunkline`, also as `python -m trunkline`; where its packages are missing, it says how to get them.

`import trunkline` needs no other package, so the wheel may lie where there are none (`pip install --no-deps`).
"""

import errno
import os
import signal
import sys

# Import name to distribution: the dependencies in pyproject.toml.
_NEEDED = {"click": "click", "msgspec": "msgspec", "yaml": "pyyaml"}

# What is printed cannot be stored.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


def main() -> None:
    """Run the command line. Exits with 2 if one of its packages is missing."""
    _open_standard_streams()
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        # Nothing is under way while modules are loaded: Ctrl-C ends the process without a word.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .cli import main as run  # noqa: PLC0415 (it may be missing what it imports)

        if raises:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDED:
            raise
        needed = _NEEDED[missing.name]
        print(f"trunkline: the command line needs {needed}: pip install 'trunkline[server]'", file=sys.stderr)
        sys.exit(2)


def _open_standard_streams() -> None:
    """Open to nowhere what is closed: else what is opened next gets its number, and what is meant for it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, os.fdopen(nowhere, "w" if number else "r", encoding="utf-8"))


if __name__ == "__main__":
    main()
