# Types of the compiled module, checked against it by mypy.stubtest. What a method means is said in its docstring.

from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias, final

from typing_extensions import Buffer

__all__ = [
    "BUILD",
    "_C_API",
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
    "SnapshotError",
    "Stats",
    "TokenIdError",
    "TokenizerError",
    "TrunklineError",
    "UnknownWorkerError",
    "UnsupportedPromptError",
    "WorkerView",
    "_SidecarConnection",
    "__version__",
    "_analyze",
    "_hash_blocks",
    "_profiles",
    "_restore_decision",
    "_scenarios",
    "_simulate",
    "extra_hash",
    "jump_hash",
]

class _Array(Protocol):
    # Numpy's types know the buffer protocol from Python 3.12 on only.
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

_Buffer: TypeAlias = Buffer | _Array

_Bytes: TypeAlias = bytes
_Prompt: TypeAlias = str | bytes | _Buffer | Sequence[int]
_Reason: TypeAlias = Literal["prefix", "session", "home", "load", "spill", "only", "baseline"]
_CacheView: TypeAlias = Literal["events", "own", "none"]
_Policy: TypeAlias = Literal["kv_aware", "prefix_aware", "least_outstanding", "round_robin", "random"]
# A numpy array where numpy is installed, a memoryview elsewhere; numpy is no dependency, so its types are not named.
_Column: TypeAlias = Any

__version__: Final[str]
BUILD: Final[str]
# A PyCapsule, whose type has a name from Python 3.13 on only.
_C_API: Final[object]

class TrunklineError(Exception): ...

class ConfigError(TrunklineError, ValueError):
    key: str
    value: str
    allowed: str

class UnknownWorkerError(TrunklineError, LookupError):
    worker: str

class DuplicateWorkerError(TrunklineError, ValueError):
    worker: str

class NoWorkerAvailableError(TrunklineError, RuntimeError):
    known: int
    live: int
    eligible: int

class TokenIdError(TrunklineError, ValueError):
    position: int
    value: int

class SnapshotError(TrunklineError, ValueError):
    fault: Literal["foreign", "version", "length", "checksum", "content"]
    expected: int | None
    found: int | None

class PayloadError(TrunklineError, ValueError): ...
class TokenizerError(TrunklineError, ValueError): ...

class UnsupportedPromptError(TrunklineError, ValueError):
    reason: str

@final
class Decision:
    @property
    def worker(self) -> str: ...
    @property
    def url(self) -> str | None: ...
    @property
    def reason(self) -> _Reason: ...
    @property
    def preferred(self) -> str | None: ...
    @property
    def matched_tokens(self) -> int: ...
    @property
    def told_tokens(self) -> int | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def matched_blocks(self) -> int: ...
    @property
    def prompt_blocks(self) -> int: ...
    @property
    def expected_hit(self) -> float: ...
    @property
    def id(self) -> int: ...
    @property
    def _router(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Match:
    @property
    def matched_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prompt_blocks(self) -> int: ...
    @property
    def workers(self) -> dict[str, int]: ...

@final
class Candidate:
    @property
    def worker(self) -> str: ...
    @property
    def matched_tokens(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def unseen(self) -> float: ...
    @property
    def replication(self) -> float: ...
    @property
    def memory(self) -> float: ...
    @property
    def over_mean(self) -> float: ...
    @property
    def held(self) -> float: ...
    @property
    def home_bonus(self) -> float: ...
    @property
    def slowness(self) -> float: ...
    @property
    def cost(self) -> float: ...

@final
class Explanation:
    @property
    def worker(self) -> str: ...
    @property
    def reason(self) -> _Reason: ...
    @property
    def preferred(self) -> str | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prompt_blocks(self) -> int: ...
    @property
    def candidates(self) -> tuple[Candidate, ...]: ...

@final
class WorkerView:
    @property
    def id(self) -> str: ...
    @property
    def url(self) -> str | None: ...
    @property
    def slot(self) -> int: ...
    @property
    def weight(self) -> int: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def capacity_tokens(self) -> int | None: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def cached_blocks(self) -> int: ...
    @property
    def cache_view(self) -> _CacheView: ...
    @property
    def slowness(self) -> float: ...
    @property
    def decisions(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def matched_tokens(self) -> int: ...
    @property
    def reported_prompt_tokens(self) -> int: ...
    @property
    def reported_cached_tokens(self) -> int: ...

@final
class Stats:
    @property
    def decisions(self) -> dict[_Reason, int]: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def live_workers(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def matched_tokens(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def index_blocks(self) -> int: ...
    @property
    def evicted_blocks(self) -> int: ...
    @property
    def events_bytes(self) -> int: ...
    @property
    def events_blocks(self) -> int: ...

@final
class Applied:
    @property
    def stored(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def orphans(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def cleared(self) -> bool: ...

@final
class MatchBatch:
    @property
    def worker(self) -> _Column: ...
    @property
    def matched_tokens(self) -> _Column: ...

@final
class RouteBatch:
    REASONS: ClassVar[tuple[_Reason, ...]]
    @property
    def worker(self) -> _Column: ...
    @property
    def matched_tokens(self) -> _Column: ...
    @property
    def reason(self) -> _Column: ...
    @property
    def decision(self) -> _Column: ...
    @property
    def worker_ids(self) -> list[str]: ...
    def __len__(self) -> int: ...

@final
class Lease:
    def __enter__(self) -> Decision: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Decision: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class Router:
    def __new__(
        cls,
        *,
        policy: _Policy = "kv_aware",
        block_size: int = 16,
        memory_budget: int | str | None = None,
        events_budget: int | str | None = None,
        seed: int | None = None,
        placement_seed: int = 0,
        replicas: int = 1,
        prefix_length: int = 4096,
        concurrency_threshold: int | None = None,
    ) -> Self: ...
    @property
    def policy(self) -> _Policy: ...
    @property
    def c_handle(self) -> int: ...
    @property
    def workers(self) -> tuple[WorkerView, ...]: ...
    def set_policy(
        self, policy: _Policy, *, prefix_length: int = 4096, concurrency_threshold: int | None = None
    ) -> None: ...
    def add_worker(
        self, id: str, *, url: str | None = None, weight: int = 1, capacity_tokens: int | None = None
    ) -> None: ...
    def remove_worker(self, id: str) -> None: ...
    def drain_worker(self, id: str, *, draining: bool = True) -> None: ...
    def reset_worker(self, id: str) -> None: ...
    def set_load(self, id: str, *, capacity_tokens: int | None = None, healthy: bool | None = None) -> None: ...
    def apply_events(
        self, id: str, payload: bytes, *, renderer: Renderer | None = None, now: float | None = None
    ) -> Applied: ...
    def set_cache_view(self, id: str, view: _CacheView) -> None: ...
    def forget_events(self, id: str) -> None: ...
    def route(
        self,
        prompt: _Prompt,
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
        rendered: str | bytes | None = None,
        extras: Sequence[int] | None = None,
        now: float | None = None,
    ) -> Decision: ...
    def lease(
        self,
        prompt: _Prompt,
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
        rendered: str | bytes | None = None,
        extras: Sequence[int] | None = None,
        now: float | None = None,
    ) -> Lease: ...
    def explain(
        self,
        prompt: _Prompt,
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
        rendered: str | bytes | None = None,
        extras: Sequence[int] | None = None,
        now: float | None = None,
    ) -> Explanation: ...
    def peek(
        self,
        prompt: _Prompt,
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        lora: str | None = None,
        rendered: str | bytes | None = None,
        extras: Sequence[int] | None = None,
    ) -> Match: ...
    def match_batch(
        self, tokens: _Buffer, offsets: _Buffer, *, model: str | None = None, salt: str | bytes | None = None
    ) -> MatchBatch: ...
    def route_batch(
        self,
        tokens: _Buffer,
        offsets: _Buffer,
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
        now: float | None = None,
    ) -> RouteBatch: ...
    def first_token(self, decision: Decision, *, now: float | None = None) -> bool: ...
    def complete(
        self,
        decision: Decision,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
        now: float | None = None,
    ) -> bool: ...
    def first_token_batch(self, decisions: _Buffer, *, now: float | None = None) -> int: ...
    def complete_batch(self, decisions: _Buffer, *, now: float | None = None) -> int: ...
    def snapshot(self, *, now: float | None = None) -> bytes: ...
    @staticmethod
    def restore(data: bytes, *, now: float | None = None) -> Router: ...
    def stats(self) -> Stats: ...

@final
class _SidecarConnection:
    @property
    def descriptor(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def waits(self) -> bool: ...
    @property
    def is_lost(self) -> bool: ...
    @staticmethod
    def connect(path: str | PathLike[str], timeout_s: float, client: int) -> _SidecarConnection | bytes | str: ...
    @staticmethod
    def check_timeout(timeout_s: float) -> None: ...
    def ask(self, question: bytes) -> bytes: ...
    def ask_decision(self, asked: int, decision: Decision) -> bytes: ...
    def complete(
        self,
        asked: int,
        decision: Decision,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
    ) -> bytes: ...
    def apply_events(self, asked: int, id: str, payload: bytes) -> bytes: ...
    def add_worker(self, id: str, url: str | None, weight: int, capacity_tokens: int | None) -> bytes: ...
    def remove_worker(self, id: str) -> bytes: ...
    def drain_worker(self, id: str, draining: bool) -> bytes: ...
    def reset_worker(self, id: str) -> bytes: ...
    def set_load(self, id: str, capacity_tokens: int | None, healthy: bool | None) -> bytes: ...
    def set_cache_view(self, id: str, view: str) -> bytes: ...
    def forget_events(self, id: str) -> bytes: ...
    def set_policy(self, policy: str, prefix_length: int, concurrency_threshold: int | None) -> bytes: ...
    def workers(self) -> bytes: ...
    def stats(self) -> bytes: ...
    def ask_prompt(
        self,
        asked: int,
        prompt: _Prompt,
        model: str | None,
        salt: str | bytes | None,
        eligible: Collection[str] | None,
        exclude: Collection[str] | None,
        lora: str | None,
        extras: Sequence[int] | None,
    ) -> bytes: ...
    def ask_many(
        self,
        asked: int,
        prompts: Sequence[_Prompt],
        model: str | None,
        salt: str | bytes | None,
        eligible: Collection[str] | None,
        exclude: Collection[str] | None,
        lora: str | None,
    ) -> bytes: ...

@final
class Sidecar:
    def __new__(
        cls,
        router: Router,
        path: str | PathLike[str],
        *,
        max_connections: int = 1024,
        frame_timeout_s: float = 5.0,
        grace_s: float = 5.0,
    ) -> Self: ...
    @property
    def path(self) -> Path: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class Renderer:
    def __new__(
        cls,
        directory: str | PathLike[str],
        *,
        time_zone: str = "UTC",
        chat_template: str | PathLike[str] | None = None,
        chat_template_content_format: Literal["auto", "string", "openai"] = "auto",
        chat_template_kwargs: str | None = None,
        exclude_unused_tools: bool = False,
    ) -> Self: ...
    def render(
        self, body: bytes, *, kind: Literal["chat", "completion"] = "chat", now: float | None = None
    ) -> bytes: ...
    def spell(self, ids: Sequence[int]) -> bytes: ...
    def canonical(self, text: str) -> bytes: ...

@final
class PrefixIndex:
    def __new__(
        cls, *, block_size: int = 16, memory_budget: int | str | None = None, seed: int | None = None
    ) -> Self: ...
    @property
    def blocks(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def insert(
        self, worker: int, prompt: _Prompt, *, model: str | None = None, salt: str | _Bytes | None = None
    ) -> None: ...
    def match(
        self, prompt: _Prompt, *, model: str | None = None, salt: str | _Bytes | None = None
    ) -> list[tuple[int, int]]: ...
    def set_capacity(self, worker: int, capacity_tokens: int | None) -> None: ...
    def remove_worker(self, worker: int) -> None: ...

@final
class Gateway:
    def __new__(
        cls,
        router: Router,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        admin_host: str = "127.0.0.1",
        admin_port: int | None = ...,
        workers: Sequence[str] = ...,
        threads: int = 0,
        max_body: int | str | None = None,
        connect_timeout_s: float = 2.0,
        first_byte_timeout_s: float | None = None,
        idle_timeout_s: float | None = ...,
        max_in_flight: int | None = None,
        worker_caps: Sequence[tuple[str, int]] = ...,
        max_queued: int = 1024,
        queue_timeout_s: float = 3.0,
        retry_budget: float = 0.2,
        hang_detection: bool = True,
        slow_start_s: float = 2.0,
        probe_interval_s: float = 1.0,
        annotate: bool = True,
        log: bool = False,
        endpoints: Sequence[Mapping[str, Any]] = ...,
        listen: str | None = None,
        worker_protocol: Literal["http1", "h2"] = "http1",
        max_header: int | str | None = None,
        max_headers: int = 100,
        max_connections_per_client: int | None = None,
        header_timeout_s: float = 10.0,
        client_idle_timeout_s: float = 75.0,
        max_streams: int = 128,
        files: Mapping[str, str | PathLike[str]] = ...,
        events: Literal["auto", "on", "off"] = "auto",
        tokenizers: Sequence[tuple[str | None, str | PathLike[str]]] = ...,
        time_zone: str = "UTC",
        chat_template: str | PathLike[str] | None = None,
        chat_template_content_format: Literal["auto", "string", "openai"] = "auto",
        chat_template_kwargs: str | None = None,
        exclude_unused_tools: bool = False,
        check_every: int = 0,
        load_signals: Literal["auto", "on", "off"] = "auto",
        trial: Mapping[str, Any] | None = None,
    ) -> Self: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def url(self) -> str: ...
    @property
    def admin_port(self) -> int | None: ...
    def add_worker(self, url: str) -> None: ...
    def remove_worker(self, url: str) -> None: ...
    def drain_worker(self, url: str) -> None: ...
    def reload(
        self,
        *,
        workers: Sequence[str],
        files: Mapping[str, str | PathLike[str]] = ...,
        trial: Mapping[str, Any] | None = None,
    ) -> tuple[list[str], list[str]]: ...
    def set_trial(self, trial: Mapping[str, Any] | None, /) -> None: ...
    def reload_refused(self) -> None: ...
    def drain(self) -> None: ...
    def wait_drained(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class MockStats:
    @property
    def requests(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def evicted_blocks(self) -> int: ...
    @property
    def event_messages(self) -> int: ...

@final
class MockWorker:
    DEFAULTS: ClassVar[dict[str, Any]]
    def __new__(
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str | None = None,
        dialect: Literal["vllm", "sglang", "trtllm", "tgi"] | None = None,
        block_size: int | None = None,
        kv_tokens: int | None = None,
        prefill_tokens_per_s: float | None = None,
        step_s: float | None = None,
        per_sequence_s: float | None = None,
        per_kv_token_s: float | None = None,
        max_sequences: int | None = None,
        step_token_budget: int | None = None,
        default_output_tokens: int | None = None,
        time_scale: float | None = None,
        kv_events: bool = False,
        events_port: int = 0,
        replay_port: int = 0,
        buffer_steps: int | None = None,
        event_delay_s: float = 0.0,
        drop_events: float = 0.0,
        duplicate_events: float = 0.0,
        reorder_events: float = 0.0,
    ) -> Self: ...
    @property
    def url(self) -> str: ...
    @property
    def port(self) -> int: ...
    def stats(self) -> MockStats: ...
    def reset(self) -> None: ...
    def event_ports(self) -> tuple[int, int] | None: ...
    def clear_cache(self, *, silent: bool = False) -> bool: ...
    def pause_events(self, *, paused: bool = True) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

def extra_hash(identifier: str, offset: int) -> int: ...
def jump_hash(key: int, slots: int) -> int: ...
def _analyze(
    options: bytes, paths: list[str], *, progress: Callable[[int, int, float], bool | None] | None = None
) -> bytes: ...
def _simulate(
    spec: bytes, *, trace: str | None = None, progress: Callable[[int, int], bool | None] | None = None
) -> bytes: ...
def _scenarios() -> list[tuple[str, str | None]]: ...
def _profiles() -> list[tuple[str, str]]: ...
def _hash_blocks(prompt: _Prompt) -> int: ...
def _restore_decision(
    numbers: tuple[int, int, int, int | None, int, int, int, int | None, int],
    names: tuple[str, str | None, str | None],
    reason: str,
) -> Decision: ...
