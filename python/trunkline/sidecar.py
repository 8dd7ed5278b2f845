"""A router in another process: `SidecarRouter` asks the decision service that `trunkline sidecar` runs.

Each thread has a connection of its own, made when it first asks and made anew after a fork, so nothing is locked and
nothing of one thread's waits for another's. The protocol is described in `rust/sidecar/src/lib.rs`.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import threading
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ._core import (
    ConfigError,
    Decision,
    DuplicateWorkerError,
    NoWorkerAvailableError,
    RouteBatch,
    TokenIdError,
    TrunklineError,
    UnknownWorkerError,
    _restore_decision,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType

_VERSION = 1
_NONE = 2**32 - 1
_HELLO, _ROUTE, _PEEK, _ROUTE_MANY, _FIRST_TOKEN, _COMPLETE, _CALL, _EXPLAIN = range(8)
_MODEL, _SALT, _ELIGIBLE, _EXCLUDED, _NAMED_ONLY = range(1, 6)
_TOKENS, _TEXT = 0, 1
_MALFORMED, _WRONG_VERSION, _FULL, _INTERNAL = 5, 6, 7, 8
_DECISION = struct.Struct("<Q7I")
_PROMPT = struct.Struct("<IBBHI")
_FIELD = struct.Struct("<BI")
_MATCH = struct.Struct("<4I")
_COMPLETED = struct.Struct("<IBQQ3I")
_FIRST = struct.Struct("<IBQQ")
_LENGTH = struct.Struct("<I")
_REASONS = RouteBatch.REASONS
_ERRORS = {1: NoWorkerAvailableError, 2: ConfigError, 3: UnknownWorkerError, 4: DuplicateWorkerError}


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


class _Refused(Exception):  # noqa: N818 (it never leaves this module)
    def __init__(self, status: int, detail: dict[str, Any]) -> None:
        self.status, self.detail = status, detail


class _Connection:
    """One connection, of one thread."""

    def __init__(self, path: str, timeout_s: float, client: int) -> None:
        self.pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel's time-outs: those of `settimeout` ask `poll` before each call.
            limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._socket.connect(path)
            answer = self.ask(struct.pack("<IB4sIQ", 17, _HELLO, b"TRKL", _VERSION, client))
        except BaseException:
            self._socket.close()
            raise
        _, self.tag = struct.unpack("<IQ", answer)

    def ask(self, frame: bytes) -> bytes:
        """Send a frame; return the answer to it."""
        try:
            self._socket.sendall(frame)
            got = self._socket.recv(4096)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        if len(got) < 5 or len(got) != _LENGTH.unpack_from(got)[0] + 4:  # noqa: PLR2004 (a length and a status)
            got = self._rest(got)
        if status := got[4]:
            raise _Refused(status, json.loads(got[5:]))
        return got[5:]

    def _rest(self, got: bytes) -> bytes:
        """Return a frame of which a part has come."""
        whole = bytearray(got)
        while len(whole) < 4 or len(whole) < _LENGTH.unpack_from(whole)[0] + 4:  # noqa: PLR2004
            try:
                more = self._socket.recv(1 << 20)
            except BlockingIOError:
                raise TimeoutError("timed out") from None
            if not more:
                raise EOFError("the sidecar closed the connection")
            whole += more
        return bytes(whole)

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def __del__(self) -> None:
        # A connection ends with its thread.
        self._socket.close()


class SidecarRouter:
    """A drop-in for `Router` that asks a sidecar: many processes share one truth about load and caches.

    path: the sidecar's socket.  timeout_s: of one answer.  Methods take and return what those of `Router` do, without
    `now`, and raise what those raise; also SidecarError. It may be used from many threads, before and after a fork, and
    pickled; a call takes tens of microseconds and blocks its thread for that long, an event loop's included.

    When the sidecar was restarted, the next call finds the new one; bookings of the old one are gone with it, and
    completing them returns False. Workers that clients added must be added again.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = 5.0) -> None:
        self.path = os.fspath(path)
        self.timeout_s = timeout_s
        self._local = threading.local()
        self._client = (os.getpid(), secrets.randbits(64))
        # Of the sidecar of this tag: number of a worker to its name and URL.
        self._names: tuple[int, dict[int, tuple[str, str | None]]] = (0, {})

    def __reduce__(self) -> tuple[Callable[..., SidecarRouter], tuple[str, float]]:
        """Pickle as path and time-out."""
        return _unpickled, (self.path, self.timeout_s)

    def __repr__(self) -> str:
        return f"SidecarRouter({self.path!r})"

    # Connections

    def _connected(self) -> _Connection:
        """Return this thread's connection."""
        connection: _Connection | None = getattr(self._local, "connection", None)
        pid = os.getpid()
        if connection is not None:
            if connection.pid == pid:
                return connection
            # Our copy of the parent's: closing it is not seen by the sidecar, whose other end the parent still has.
            self._drop()
        if self._client[0] != pid:
            self._client = (pid, secrets.randbits(64))
        try:
            connection = _Connection(self.path, self.timeout_s, self._client[1])
        except (OSError, EOFError, struct.error) as error:
            raise SidecarError(f"no sidecar answers at {self.path}: {error}") from error
        except _Refused as refused:
            raise SidecarError(refused.detail["message"]) from None
        self._local.connection = connection
        return connection

    def _drop(self) -> None:
        self._local.connection.close()
        del self._local.connection

    def _ask(self, frame: bytes) -> tuple[bytes, int]:
        """Return the answer, and the tag of the sidecar that gave it."""
        connection = self._connected()
        try:
            return self._exchange(connection, frame)
        except TimeoutError as late:
            raise self._lost(late) from late
        except (OSError, EOFError) as error:
            lost = error
        fresh = self._connected()
        if fresh.tag == connection.tag:
            # The same sidecar: it may have done what was asked, so asking twice could book twice.
            raise self._lost(lost) from lost
        try:
            return self._exchange(fresh, frame)
        except (OSError, EOFError) as error:
            raise self._lost(error) from error

    def _exchange(self, connection: _Connection, frame: bytes) -> tuple[bytes, int]:
        try:
            return connection.ask(frame), connection.tag
        except _Refused as refused:
            raise self._error(refused) from None
        except BaseException:
            # Whatever comes later on this connection would be taken for another answer.
            self._drop()
            raise

    def _lost(self, error: Exception) -> SidecarError:
        return SidecarError(f"the sidecar at {self.path} did not answer: {error}")

    def _error(self, refused: _Refused) -> TrunklineError:
        """Make the exception that `Router` would have raised."""
        message = refused.detail.pop("message")
        if refused.status in (_MALFORMED, _WRONG_VERSION, _FULL, _INTERNAL):
            self._drop()
            return SidecarError(message)
        error = _ERRORS.get(refused.status, TrunklineError)(message)
        for name, value in refused.detail.items():
            setattr(error, name, value)
        return error

    def _call(self, call: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        body = json.dumps({"call": call, **arguments}).encode()
        return json.loads(self._ask(struct.pack("<IB", len(body) + 1, _CALL) + body)[0])

    # Names of workers

    def _named(self, tag: int, number: int) -> tuple[str, str | None]:
        """Return a worker's name and URL; a number is never given to another name."""
        known, names = self._names
        if known != tag or number not in names:
            names = {row["slot"]: (row["id"], row["url"]) for row in self._call("workers")}
            self._names = (tag, names)
        return names.get(number, ("", None))

    def _decision(self, answer: tuple[int, ...], tag: int) -> Decision:
        number, worker, preferred, matched, prompt, matched_blocks, prompt_blocks, reason = answer
        left = None if preferred == _NONE else preferred
        numbers = (tag, number, worker, left, matched_blocks, prompt_blocks, matched, None, prompt)
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
        self._call("add_worker", id=id, url=url, weight=weight, capacity_tokens=capacity_tokens)
        self._names = (0, {})

    def remove_worker(self, id: str) -> None:
        """Remove a worker; see `Router.remove_worker`."""
        self._call("remove_worker", id=id)

    def drain_worker(self, id: str, *, draining: bool = True) -> None:
        """Send a worker nothing new; see `Router.drain_worker`."""
        self._call("drain_worker", id=id, draining=draining)

    def reset_worker(self, id: str) -> None:
        """Forget a worker's cache; see `Router.reset_worker`."""
        self._call("reset_worker", id=id)

    def set_load(
        self,
        id: str,
        *,
        capacity_tokens: int | None = None,
        healthy: bool | None = None,
    ) -> None:
        """Tell what is known of a worker; see `Router.set_load`."""
        self._call("set_load", id=id, capacity_tokens=capacity_tokens, healthy=healthy)

    def set_policy(self, policy: str, *, prefix_length: int = 4096, concurrency_threshold: int | None = None) -> None:
        """Choose by another policy; see `Router.set_policy`."""
        self._call(
            "set_policy", policy=policy, prefix_length=prefix_length, concurrency_threshold=concurrency_threshold
        )

    @property
    def workers(self) -> tuple[Row, ...]:
        """The fleet, with the attributes of `WorkerView`."""
        return tuple(map(Row, self._call("workers")))

    @property
    def policy(self) -> str:
        """The name of the policy in use."""
        return str(self._call("stats")["policy"])

    def stats(self) -> Row:
        """Return counters and sizes, with the attributes of `Stats`."""
        return Row(self._call("stats"))

    # Requests

    def route(
        self,
        prompt: Any,  # noqa: ANN401 (as `Router.route`)
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> Decision:
        """Choose a worker for a prompt and book the request on it; see `Router.route`."""
        answer, tag = self._ask(_prompt_frame(_ROUTE, prompt, model, salt, eligible, exclude))
        return self._decision(_DECISION.unpack(answer), tag)

    def route_many(
        self,
        prompts: Sequence[Any],
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> list[Decision]:
        """Route prompts of token ids in one round trip; nothing stays booked if one cannot be routed."""
        fields = _fields(model, salt, eligible, exclude)
        ids = [_token_ids(prompt) for prompt in prompts]
        lengths = array("I", map(_count, ids))
        size = 12 + len(fields) + 4 * len(lengths) + sum(map(len, ids))
        head = struct.pack("<IBBHII", size, _ROUTE_MANY, 0, 0, len(fields), len(lengths))
        answer, tag = self._ask(b"".join((head, fields, lengths.tobytes(), *ids)))
        return [self._decision(row, tag) for row in _DECISION.iter_unpack(answer)]

    def peek(self, prompt: Any, *, model: str | None = None, salt: str | bytes | None = None) -> SidecarMatch:  # noqa: ANN401
        """Tell who holds how much of a prompt; see `Router.peek`."""
        answer, tag = self._ask(_prompt_frame(_PEEK, prompt, model, salt, None, None))
        matched, tokens, blocks, _ = _MATCH.unpack_from(answer)
        holders = sorted(struct.iter_unpack("<II", answer[_MATCH.size :]), key=lambda holder: (-holder[1], holder[0]))
        return SidecarMatch(matched, tokens, blocks, {self._named(tag, worker)[0]: held for worker, held in holders})

    def explain(
        self,
        prompt: Any,  # noqa: ANN401
        *,
        model: str | None = None,
        salt: str | bytes | None = None,
        eligible: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> Row:
        """Tell what `route` would choose and how every candidate scores; see `Router.explain`."""
        answer, tag = self._ask(_prompt_frame(_EXPLAIN, prompt, model, salt, eligible, exclude))
        found = Row(json.loads(answer))
        for row in (found, *found.candidates):
            row["worker"] = self._named(tag, row["worker"])[0]
        found["candidates"] = tuple(map(Row, found.candidates))
        if found.preferred is not None:
            found["preferred"] = self._named(tag, found.preferred)[0]
        return found

    def first_token(self, decision: Decision) -> bool:
        """Say that the first token came; return whether this was the first time."""
        answer, _ = self._ask(_FIRST.pack(17, _FIRST_TOKEN, decision._router, decision.id))  # noqa: SLF001
        return answer != b"\0\0\0\0"

    def complete(
        self,
        decision: Decision,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> bool:
        """Say that the request is over; return whether this was the first time. Any process may say it."""
        usage = (_NONE, _NONE, _NONE)
        if prompt_tokens is not None or cached_tokens is not None or completion_tokens is not None:
            usage = (
                decision.prompt_tokens if prompt_tokens is None else prompt_tokens,
                _NONE if cached_tokens is None else cached_tokens,
                completion_tokens or 0,
            )
        answer, _ = self._ask(_COMPLETED.pack(29, _COMPLETE, decision._router, decision.id, *usage))  # noqa: SLF001
        return answer != b"\0\0\0\0"

    def lease(self, prompt: Any, **arguments: Any) -> SidecarLease:  # noqa: ANN401
        """Route on entry, complete on exit: `with router.lease(prompt) as decision`, or `async with`."""
        return SidecarLease(self, prompt, arguments)

    def close(self) -> None:
        """End this thread's connection; the next call makes a new one."""
        if hasattr(self._local, "connection"):
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


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _fields(
    model: str | None,
    salt: str | bytes | None,
    eligible: Collection[str] | None,
    exclude: Collection[str] | None,
) -> bytes:
    """Write what is told of a prompt beside it."""
    if model is salt is eligible is exclude is None:
        return b""
    if isinstance(eligible, str) or isinstance(exclude, str):
        raise TypeError("eligible, exclude: allowed is a collection of worker ids, not one string")
    fields = [(_MODEL, model)] if model is not None else []
    fields += [(_SALT, salt)] if salt is not None else []  # type: ignore[list-item]
    if eligible is not None:
        fields += [(_NAMED_ONLY, ""), *((_ELIGIBLE, name) for name in eligible)]
    fields += [(_EXCLUDED, name) for name in exclude or ()]
    return b"".join(_FIELD.pack(name, len(value)) + value for name, value in ((name, _bytes(v)) for name, v in fields))


def _prompt_frame(  # noqa: PLR0917 (those of `_fields`)
    asked: int,
    prompt: Any,  # noqa: ANN401
    model: str | None,
    salt: str | bytes | None,
    eligible: Collection[str] | None,
    exclude: Collection[str] | None,
) -> bytes:
    """Write a question about a prompt."""
    fields = _fields(model, salt, eligible, exclude)
    if isinstance(prompt, str | bytes):
        kind, content = _TEXT, _bytes(prompt)
    elif isinstance(prompt, bytearray) or (isinstance(prompt, memoryview) and prompt.format == "B"):
        kind, content = _TEXT, bytes(prompt)
    else:
        kind, content = _TOKENS, _token_ids(prompt)
    size = 8 + len(fields) + len(content)
    return b"".join((_PROMPT.pack(size, asked, kind, 0, len(fields)), fields, content))


def _count(ids: bytes) -> int:
    return len(ids) // 4


def _token_ids(prompt: Any) -> bytes:  # noqa: ANN401
    """Return token ids of any of the forms that `Router.route` takes, as the wire has them."""
    try:
        view = memoryview(prompt)
    except TypeError:
        if isinstance(prompt, str) or not hasattr(prompt, "__len__"):
            message = f"a {type(prompt).__name__} is no prompt of token ids"
            raise TypeError(message) from None
        view = memoryview(array("q", _checked(prompt)))
    if view.ndim != 1 or not view.contiguous:
        raise ValueError("token ids must lie in one dimension, without gaps")
    if view.format in ("I", "L") and view.itemsize == 4:  # noqa: PLR2004
        return view.tobytes()
    if view.format not in ("i", "l", "q"):
        message = f"items of the format {view.format!r} are no token ids"
        raise TypeError(message)
    try:
        return array("I", view.tolist()).tobytes()
    except (OverflowError, ValueError):
        _checked(view.tolist())
        raise


def _checked(ids: Sequence[int]) -> Sequence[int]:
    """Refuse token ids outside 0..2**32."""
    for position, value in enumerate(ids):
        if not 0 <= value <= _NONE:
            error = TokenIdError(f"token id {value} at position {position} is outside 0..2^32")
            error.position, error.value = position, value
            raise error
    return ids
