"""Prefix-aware routing for LLM inference.

`Router` chooses for each prompt the worker that already holds most of its prefix, without drowning it.
`Gateway` puts a router in front of workers over HTTP, and the command ``trunkline serve`` is that gateway.
"""

from ._core import (
    Applied,
    Candidate,
    ConfigError,
    Decision,
    DuplicateWorkerError,
    Explanation,
    Gateway,
    Lease,
    Match,
    MatchBatch,
    MockStats,
    MockWorker,
    NoWorkerAvailableError,
    PayloadError,
    PrefixIndex,
    Renderer,
    RouteBatch,
    Router,
    Sidecar,
    SnapshotError,
    Stats,
    TokenIdError,
    TokenizerError,
    TrunklineError,
    UnknownWorkerError,
    UnsupportedPromptError,
    WorkerView,
    __version__,
    extra_hash,
    jump_hash,
)
from ._include import get_include

# For type checkers, which know the name; `typing` would be loaded for nothing else.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .sidecar import SidecarError, SidecarRouter
del TYPE_CHECKING

__all__ = [
    "Applied",
    "Candidate",
    "ConfigError",
    "Decision",
    "DuplicateWorkerError",
    "Explanation",
    "Gateway",
    "Lease",
    "Match",
    "MatchBatch",
    "MockStats",
    "MockWorker",
    "NoWorkerAvailableError",
    "PayloadError",
    "PrefixIndex",
    "Renderer",
    "RouteBatch",
    "Router",
    "Sidecar",
    "SidecarError",
    "SidecarRouter",
    "SnapshotError",
    "Stats",
    "TokenIdError",
    "TokenizerError",
    "TrunklineError",
    "UnknownWorkerError",
    "UnsupportedPromptError",
    "WorkerView",
    "__version__",
    "extra_hash",
    "get_include",
    "jump_hash",
]


def __getattr__(name: str) -> object:
    # Sockets and JSON are loaded by those who use them.
    if name in ("SidecarError", "SidecarRouter"):
        from . import sidecar  # noqa: PLC0415

        return getattr(sidecar, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
