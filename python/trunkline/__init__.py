"""Prefix-aware routing for LLM inference.

`Router` chooses for each prompt the worker that already holds most of its prefix, without drowning it.
`Gateway` puts a router in front of workers over HTTP, and the command ``trunkline serve`` is that gateway.
"""

from ._core import (
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
    PrefixIndex,
    RouteBatch,
    Router,
    SnapshotError,
    Stats,
    TokenIdError,
    TrunklineError,
    UnknownWorkerError,
    WorkerView,
    __version__,
    jump_hash,
)

__all__ = [
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
    "PrefixIndex",
    "RouteBatch",
    "Router",
    "SnapshotError",
    "Stats",
    "TokenIdError",
    "TrunklineError",
    "UnknownWorkerError",
    "WorkerView",
    "__version__",
    "jump_hash",
]
