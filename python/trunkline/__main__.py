"""The command `trunkline`, also as `python -m trunkline`; where its packages are missing, it says how to get them.

`import trunkline` needs no other package, so the wheel may lie where there are none (`pip install --no-deps`).
"""

import sys

# Import name to distribution: the dependencies in pyproject.toml.
_NEEDED = {"click": "click", "msgspec": "msgspec", "yaml": "pyyaml"}


def main() -> None:
    """Run the command line. Exits with 2 if one of its packages is missing."""
    try:
        from .cli import main as run  # noqa: PLC0415 (it may be missing what it imports)

        run()
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDED:
            raise
        needed = _NEEDED[missing.name]
        print(f"trunkline: the command line needs {needed}: pip install 'trunkline[server]'", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
