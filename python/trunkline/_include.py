"""Where the headers for compiled gateways are."""

import os


def get_include() -> str:
    """Return the directory of `trunkline.h`, for the include path of a C compiler."""
    return os.path.join(os.path.dirname(__file__), "include")  # noqa: PTH118, PTH120 (pathlib takes 10 ms to load)
