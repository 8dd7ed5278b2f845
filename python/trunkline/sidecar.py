"""A router in another process: `SidecarRouter` asks the decision service that `trunkline sidecar` runs.

Each thread has a connection of its own, made when it first asks and made anew after a fork, so nothing is locked and
nothing of one thread's waits for another's. The protocol is described in `rust/sidecar/src/lib.rs`.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from weakref import ref

from ._core import (
    ConfigError,
    Decision,
    DuplicateWorkerError,
    NoWorkerAvailableError,
    PayloadError,
    RouteBatch,
    TrunklineError,
    UnknownWorkerError,
    _restore_decision,
    _SidecarConnection,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType

_T = TypeVar("_T")

_NONE = 2**32 - 1
# What is asked; 6, a call of the router, is the connection's to know.
_ROUTE, _PEEK, _ROUTE_MANY, _FIRST_TOKEN, _COMPLETE, _, _EXPLAIN, _EVENTS, _SNAPSHOT = range(1, 10)
_MALFORMED, _WRONG_VERSION, _FULL, _INTERNAL = 5, 6, 7, 8
# Answers begin with a status.
_DECISION = struct.Struct("<Q8I")
_ANSWERED = struct.Struct("<xQ8I")
_MATCH = struct.Struct("<x4I")
_HOLDER = struct.Struct("<2I")
_APPLIED = struct.Struct("<x4Q?")
_NEW = struct.Struct("<xI")
_ASK, _ASK_PROMPT, _ASK_MANY = _SidecarConnection.ask, _SidecarConnection.ask_prompt, _SidecarConnection.ask_many
_REASONS = RouteBatch.REASONS
_ERRORS = {
    1: NoWorkerAvailableError,
    2: ConfigError,
    3: UnknownWorkerError,
    4: DuplicateWorkerError,
    9: PayloadError,
}


# What the sidecar knows this process by.
_client = 0


def _name_process() -> None:
    global _client  # noqa: PLW0603 (a process has one name)
    _client = int.from_bytes(os.urandom(8), "little")


# Those of all threads, by descriptor, which the next one takes over from one that is gone.
_connections: dict[int, ref[_SidecarConnection]] = {}


def _begin_as_child() -> None:
    _name_process()
    # The sidecar would not see that one of the parent's ends, as long as this process has it open, too.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, connection in _connections.items():
        if connection() is not None:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _connections.clear()


_name_process()
os.register_at_fork(after_in_child=_begin_as_child)


class _Local(threading.local):
    """A thread's connection, and the process that made it."""

    connection: _SidecarConnection | None = None
    client = 0


class SidecarError(TrunklineError, ConnectionError):
    """The sidecar cannot be reached, did not answer in time, or speaks something else. The next call tries anew."""


class SidecarMatch(NamedTuple):
    """Who holds how much of a prompt."""

    matched_tokens: int
    prompt_tokens: int
    prompt_blocks: int
    workers: dict[str, int]


class Row(dict[str, Any]):
    """A row of the sidecar's answer, with its keys as attributes: those of `WorkerView`, `Stats` or `Explanation`."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (as different as the keys are)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class SidecarApplied(NamedTuple):
    """What became of one payload of a worker's events; see `Applied`."""

    stored: int
    removed: int
    orphans: int
    refused: int
    cleared: bool


class SidecarRouter:
    """A drop-in for `Router` that asks a sidecar: many processes share one truth about load and caches.

    path: the sidecar's socket.  timeout_s: of a question and its answer together, 0.001 to 3600.  Methods take and
    return what those of `Router` do, without `now` and `rendered`, and raise what those raise; also SidecarError. It
    may be used from many threads, from a signal's handler, before and after a fork, and pickled; a call takes tens of
    microseconds and blocks its thread for that long, an event loop's included, but without the GIL.

    Raises ConfigError.

    When the sidecar was restarted, the next call finds the new one; bookings of the old one are gone with it, and
    completing them returns False. Workers that clients added must be added again.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = 5.0) -> None:
        _SidecarConnection.check_timeout(timeout_s)
        self.path = os.fspath(path)
        self.timeout_s = timeout_s
        self._local = _Local()
        # Of the sidecar of this tag: number of a worker to its name and URL.
        self._names: tuple[int, dict[int, tuple[str, str | None]]] = (0, {})

    def __reduce__(self) -> tuple[Callable[..., SidecarRouter], tuple[str, float]]:
        """Pickle as path and time-out."""
        return _unpickled, (self.path, self.timeout_s)

    def __repr__(self) -> str:
        return f"SidecarRouter({self.path!r})"

    # Connections

    def _connected(self) -> _SidecarConnection:
        """Return this thread's connection."""
        local = self._local
        # One that waits is that of the call which a signal's handler has interrupted to ask this.
        if local.connection is not None and local.client == _client and not local.connection.waits:
            return local.connection
        local.connection, local.client = None, _client
        made = _SidecarConnection.connect(self.path, self.timeout_s, _client)
        if isinstance(made, str):
            raise SidecarError(f"no sidecar answers at {self.path}: {made}")
        if isinstance(made, bytes):
            raise SidecarError(self._read(_refusal, made)[0])
        _connections[made.descriptor] = ref(made)
        local.connection = made
        return made

    def _drop(self) -> None:
        # The connection ends with its last reference.
        self._local.connection = None

    def _ask(self, how: Callable[..., bytes], read: Callable[[bytes], _T], *question: object) -> tuple[_T, int]:
        """Return what `read` makes of the answer, and the tag of the sidecar that gave it.

        how: a method of the connection.
        """
        connection = self._connected()
        try:
            answer = how(connection, *question)
        except BaseException as error:
            self._drop_failed(connection)
            if not connection.is_lost:
                raise
            if isinstance(error, TimeoutError):
                raise self._lost(error) from error
            answer, connection = self._ask_anew(connection.tag, error, how, question)
        if answer[0]:
            raise self._error(answer)
        return self._read(read, answer), connection.tag

    def _read(self, read: Callable[[bytes], _T], answer: bytes) -> _T:
        try:
            return read(answer)
        except (ValueError, LookupError, TypeError, AttributeError, struct.error) as odd:
            self._drop()
            raise SidecarError(f"what answers at {self.path} is no sidecar: {odd}") from odd

    def _ask_anew(
        self, tag: int, lost: BaseException, how: Callable[..., bytes], question: tuple[object, ...]
    ) -> tuple[bytes, _SidecarConnection]:
        """Ask the successor of the sidecar of this tag, whose connection was lost."""
        connection = self._connected()
        if connection.tag == tag:
            # The same one: it may have done what was asked, so asking twice could book twice.
            raise self._lost(lost) from lost
        try:
            return how(connection, *question), connection
        except BaseException as error:
            self._drop_failed(connection)
            if not connection.is_lost:
                raise
            raise self._lost(error) from error

    def _drop_failed(self, connection: _SidecarConnection) -> None:
        # After a signal's handler has raised, what comes later on it would be taken for another answer.
        if connection.is_lost or connection.waits:
            self._drop()

    def _lost(self, error: BaseException) -> SidecarError:
        return SidecarError(f"the sidecar at {self.path} did not answer: {error}")

    def _error(self, answer: bytes) -> TrunklineError:
        """Make the exception that `Router` would have raised."""
        status, (message, detail) = answer[0], self._read(_refusal, answer)
        if status in (_MALFORMED, _WRONG_VERSION, _FULL, _INTERNAL):
            self._drop()
            return SidecarError(message)
        error = _ERRORS.get(status, SidecarError)(message)
        for name, value in detail.items():
            setattr(error, name, value)
        return error

    def _call(self, call: Callable[..., bytes], *arguments: object) -> Any:  # noqa: ANN401 (JSON)
        return self._ask(call, _json, *arguments)[0]

    # Names of workers

    def _named(self, tag: int, number: int) -> tuple[str, str | None]:
        """Return a worker's name and URL; a number is never given to another name."""
        known, names = self._names
        if known != tag or number not in names:
            rows, told_by = self._ask(_SidecarConnection.workers, _json)
            if told_by != tag:
                raise SidecarError(f"the sidecar at {self.path} was restarted meanwhile; its bookings are gone")
            names = {row["slot"]: (row["id"], row["url"]) for row in rows}
            self._names = (tag, names)
        return names.get(number, ("", None))

    def _decision(self, answer: tuple[int, ...], tag: int) -> Decision:
        number, worker, preferred, matched, prompt, matched_blocks, prompt_blocks, reason, told = answer
        left = None if preferred == _NONE else preferred
        heard = None if told == _NONE else told
        numbers = (tag, number, worker, left, matched_blocks, prompt_blocks, matched, heard, prompt)
        name, url = self._named(tag, worker)
        return _restore_decision(
            numbers, (name, url, None if left is None else self._named(tag, left)[0]), _REASONS[reason]
        )

    # The fleet

    def add_worker(
        self,
        id: str,
        *,
        url: str | None = None,
        weight: int = 1,
        capacity_tokens: int | None = None,
    ) -> None:
        """Add a worker; see `Router.add_worker`."""
        self._call(_SidecarConnection.add_worker, id, url, weight, capacity_tokens)
        self._names = (0, {})

    def remove_worker(self, id: str) -> None:
        """Remove a worker; see `Router.remove_worker`."""
        self._call(_SidecarConnection.remove_worker, id)

    def drain_worker(self, id: str, *, draining: bool = True) -> None:
        """Send a worker nothing new; see `Router.drain_worker`."""
        self._call(_SidecarConnection.drain_worker, id, draining)

    def reset_worker(self, id: str) -> None:
        """Forget a worker's cache; see `Router.reset_worker`."""
        self._call(_SidecarConnection.reset_worker, id)

    def set_load(
        self,
        id: str,
        *,
        capacity_tokens: int | None = None,
        healthy: bool | None = None,
    ) -> None:
        """Tell what is known of a worker; see `Router.set_load`."""
        self._call(_SidecarConnection.set_load, id, capacity_tokens, healthy)

    def apply_events(self, id: str, payload: bytes) -> SidecarApplied:
        """Apply one message of a worker's feed of KV events, matched by token ids; see `Router.apply_events`."""
        applied = self._ask(_SidecarConnection.apply_events, _APPLIED.unpack, _EVENTS, id, payload)[0]
        return SidecarApplied(*applied)

    def set_cache_view(self, id: str, view: str) -> None:
        """Say from where a worker's cache is known; see `Router.set_cache_view`."""
        self._call(_SidecarConnection.set_cache_view, id, view)

    def forget_events(self, id: str) -> None:
        """Forget what a worker's events told; see `Router.forget_events`."""
        self._call(_SidecarConnection.forget_events, id)

    def set_policy(self, policy: str, *, prefix_length: int = 4096, concurrency_threshold: int | None = None) -> None:
        """Choose by another policy; see `Router.set_policy`."""
        self._call(_SidecarConnection.set_policy, policy, prefix_length, concurrency_threshold)

    @property
    def workers(self) -> tuple[Row, ...]:
        """The fleet, with the attributes of `WorkerView`."""
        return tuple(map(Row, self._call(_SidecarConnection.workers)))

    @property
    def policy(self) -> str:
        """The name of the policy in use."""
        return str(self._call(_SidecarConnection.stats)["policy"])

    def stats(self) -> Row:
        """Return counters and sizes, with the attributes of `Stats`."""
        return Row(self._call(_SidecarConnection.stats))

    def snapshot(self) -> bytes:
        """Save what the sidecar knows, for `Router.restore`."""
        return self._ask(_ASK, _content, bytes([_SNAPSHOT]))[0]

    # Requests

    def route(
        self,
        prompt: Any,  # noqa: ANN401 (as `Router.route`)
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
        extras: Sequence[int] | None = None,
    ) -> Decision:
        """Choose a worker for a prompt and book the request on it; see `Router.route`."""
        told = (prompt, model, salt, eligible, exclude, lora, extras)
        answer, tag = self._ask(_ASK_PROMPT, _ANSWERED.unpack, _ROUTE, *told)
        return self._decision(answer, tag)

    def route_many(
        self,
        prompts: Sequence[Any],
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
    ) -> list[Decision]:
        """Route prompts of token ids in one round trip; nothing stays booked if one cannot be routed."""
        told = (prompts, model, salt, eligible, exclude, lora)
        rows, tag = self._ask(_ASK_MANY, _decisions, _ROUTE_MANY, *told)
        return [self._decision(row, tag) for row in rows]

    def peek(
        self,
        prompt: Any,  # noqa: ANN401
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        lora: str | None = None,
        extras: Sequence[int] | None = None,
    ) -> SidecarMatch:
        """Tell who holds how much of a prompt; see `Router.peek`."""
        told = (prompt, model, salt, None, None, lora, extras)
        ((matched, tokens, blocks), holders), tag = self._ask(_ASK_PROMPT, _match, _PEEK, *told)
        return SidecarMatch(matched, tokens, blocks, {self._named(tag, worker)[0]: held for worker, held in holders})

    def explain(
        self,
        prompt: Any,  # noqa: ANN401
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        lora: str | None = None,
        extras: Sequence[int] | None = None,
    ) -> Row:
        """Tell what `route` would choose and how every candidate scores; see `Router.explain`."""
        told = (prompt, model, salt, eligible, exclude, lora, extras)
        answer, tag = self._ask(_ASK_PROMPT, _json, _EXPLAIN, *told)
        found = Row(answer)
        for row in (found, *found.candidates):
            row["worker"] = self._named(tag, row["worker"])[0]
        found["candidates"] = tuple(map(Row, found.candidates))
        if found.preferred is not None:
            found["preferred"] = self._named(tag, found.preferred)[0]
        return found

    def first_token(self, decision: Decision) -> bool:
        """Say that the first token came; return whether this was the first time."""
        return self._ask(_SidecarConnection.ask_decision, _is_new, _FIRST_TOKEN, decision)[0]

    def complete(
        self,
        decision: Decision,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> bool:
        """Say that the request is over; return whether this was the first time. Any process may say it."""
        usage = (prompt_tokens, cached_tokens, completion_tokens)
        return self._ask(_SidecarConnection.complete, _is_new, _COMPLETE, decision, *usage)[0]

    def lease(self, prompt: Any, **arguments: Any) -> SidecarLease:  # noqa: ANN401
        """Route on entry, complete on exit: `with router.lease(prompt) as decision`, or `async with`."""
        return SidecarLease(self, prompt, arguments)

    def close(self) -> None:
        """End this thread's connection; the next call makes a new one."""
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()


class SidecarLease:
    """A booking that completes itself; one request at a time."""

    def __init__(self, router: SidecarRouter, prompt: Any, arguments: dict[str, Any]) -> None:  # noqa: ANN401
        self._router, self._prompt, self._arguments = router, prompt, arguments
        self._decision: Decision | None = None

    def __enter__(self) -> Decision:
        if self._decision is not None:
            raise RuntimeError("this lease is entered already; make one per request")
        self._decision = self._router.route(self._prompt, **self._arguments)
        return self._decision

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        decision, self._decision = self._decision, None
        if decision is not None:
            self._router.complete(decision)

    async def __aenter__(self) -> Decision:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.__exit__(exc_type, exc, traceback)


def _unpickled(path: str, timeout_s: float) -> SidecarRouter:
    return SidecarRouter(path, timeout_s=timeout_s)


# What answers say, read; anything else than a sidecar's makes them raise.


def _content(answer: bytes) -> bytes:
    return answer[1:]


def _json(answer: bytes) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(answer[1:])


def _refusal(answer: bytes) -> tuple[str, dict[str, Any]]:
    detail = json.loads(answer[1:])
    return str(detail.pop("message")), dict(detail)


def _is_new(answer: bytes) -> bool:
    (count,) = _NEW.unpack(answer)
    return bool(count)


def _decisions(answer: bytes) -> list[tuple[int, ...]]:
    return list(_DECISION.iter_unpack(answer[1:]))


def _match(answer: bytes) -> tuple[tuple[int, int, int], list[tuple[int, int]]]:
    """Return tokens matched, tokens, blocks; and who holds how many, deepest first."""
    matched, tokens, blocks, _ = _MATCH.unpack_from(answer)
    holders = [(worker, held) for worker, held in _HOLDER.iter_unpack(answer[_MATCH.size :])]
    holders.sort(key=_deepest_first)
    return (matched, tokens, blocks), holders


def _deepest_first(holder: tuple[int, int]) -> tuple[int, int]:
    return -holder[1], holder[0]
