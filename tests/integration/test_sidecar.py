"""A sidecar as a process of its own, and `SidecarRouter` in others."""

from __future__ import annotations

import array
import contextlib
import inspect
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest

from tests.support import clean_environment, wait_for
from trunkline import (
    ConfigError,
    DuplicateWorkerError,
    NoWorkerAvailableError,
    PayloadError,
    Router,
    Sidecar,
    SidecarError,
    SidecarRouter,
    TokenIdError,
    UnknownWorkerError,
    extra_hash,
)

PROMPT = list(range(64))
WORKERS = ("http://a:1", "http://b:1")
Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start `trunkline sidecar`; it listens when this returns."""
    with contextlib.ExitStack() as stack:

        def run(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "trunkline", "sidecar", "--socket", str(path), *arguments]
            command += [word for worker in WORKERS for word in ("--worker", worker)]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment())
            stack.callback(process.wait, 10)
            stack.callback(process.kill)
            assert process.stderr is not None
            stack.callback(process.stderr.close)
            assert "sidecar on" in process.stderr.readline()
            return process

        yield run


@pytest.fixture
def router(path: Path) -> Iterator[SidecarRouter]:
    """Ask a sidecar of this process, with two workers."""
    local = Router()
    for worker in WORKERS:
        local.add_worker(worker, url=worker + "/v1")
    with Sidecar(local, path, grace_s=60), SidecarRouter(path, timeout_s=20) as asking:
        yield asking


Behaviour: TypeAlias = Callable[[socket.socket], None]


def frame(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def question(connection: socket.socket) -> bytes:
    length = connection.recv(4, socket.MSG_WAITALL)
    return connection.recv(struct.unpack("<I", length)[0], socket.MSG_WAITALL) if length else b""


def greet(connection: socket.socket) -> None:
    question(connection)
    connection.sendall(frame(struct.pack("<BIQ", 0, 1, 77)))


@pytest.fixture
def impostor(path: Path) -> Iterator[Callable[[Behaviour], None]]:
    """Listen where a sidecar would, and do with each connection what the test says."""
    with contextlib.ExitStack() as stack:

        def run(behave: Behaviour) -> None:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            listener.listen()
            threads: list[threading.Thread] = []

            def serve(connection: socket.socket) -> None:
                with connection, contextlib.suppress(OSError):
                    behave(connection)

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        came, _ = listener.accept()
                        threads.append(threading.Thread(target=serve, args=(came,), daemon=True))
                        threads[-1].start()

            accepting = threading.Thread(target=accept)
            accepting.start()
            stack.callback(accepting.join, 10)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)

        yield run


@contextlib.contextmanager
def handled(number: signal.Signals, handler: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(number, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(number, before)


def in_flight(router: Router | SidecarRouter) -> int:
    return sum(worker.in_flight for worker in router.workers)


def test_it_decides_as_a_router_here_would(path: Path) -> None:
    """Every answer is that of a local router with the same seeds and history."""
    local, remote = Router(seed=1), Router(seed=1)
    with Sidecar(remote, path), SidecarRouter(path, timeout_s=20) as asking:
        both: list[Router | SidecarRouter] = [local, asking]
        for each in both:
            for number in range(4):
                each.add_worker(f"w{number}", url=f"http://{number}", weight=number + 1, capacity_tokens=100_000)
        for number in range(60):
            prompt = [number % 7] * 32 + list(range(number))
            arguments = [{}, {"model": "m"}, {"salt": b"s"}, {"exclude": ["w1"]}, {"eligible": ["w0", "w3", "?"]}][
                number % 5
            ]
            one, two = (each.route(prompt, **arguments) for each in both)  # type: ignore[arg-type]
            fields = (
                "worker",
                "url",
                "reason",
                "preferred",
                "matched_tokens",
                "prompt_tokens",
                "matched_blocks",
                "prompt_blocks",
            )
            assert [getattr(one, field) for field in fields] == [getattr(two, field) for field in fields]
            if number % 3:
                assert local.first_token(one) == asking.first_token(two)
                assert local.complete(one, cached_tokens=5) == asking.complete(two, cached_tokens=5)
            found = local.peek(prompt), asking.peek(prompt)
            assert (found[0].workers, found[0].prompt_blocks) == (found[1].workers, found[1].prompt_blocks)
        here, there = local.stats(), asking.stats()
        for field in ("decisions", "in_flight", "prompt_tokens", "matched_tokens", "index_blocks", "live_workers"):
            assert getattr(here, field) == getattr(there, field), field
        for mine, theirs in zip(local.workers, asking.workers, strict=True):
            assert {name: getattr(mine, name) for name in theirs} == dict(theirs)
        explained = local.explain(PROMPT), asking.explain(PROMPT)
        assert [(row.worker, row.cost) for row in explained[0].candidates] == [
            (row.worker, row.cost) for row in explained[1].candidates
        ]
        assert local.policy == asking.policy


@pytest.mark.parametrize(
    "same",
    [
        array.array("I", PROMPT),
        array.array("i", PROMPT),
        np.array(PROMPT, dtype=np.uint32),
        np.array(PROMPT, dtype=np.int64),
        memoryview(array.array("q", PROMPT)),
        tuple(PROMPT),
    ],
    ids=repr,
)
def test_a_prompt_may_have_any_form(router: SidecarRouter, same: object) -> None:
    router.complete(router.route(PROMPT))
    assert router.peek(same).matched_tokens == len(PROMPT)


def test_text_is_text(router: SidecarRouter) -> None:
    router.complete(router.route("é" * 64))
    assert (
        router.peek(("é" * 64).encode()).matched_tokens == router.peek(bytearray("é" * 64, "utf-8")).matched_tokens > 0
    )


def test_errors_are_those_of_a_router(router: SidecarRouter) -> None:
    with pytest.raises(NoWorkerAvailableError) as nobody:
        router.route(PROMPT, eligible=[])
    assert (nobody.value.known, nobody.value.live, nobody.value.eligible) == (2, 2, 0)
    with pytest.raises(UnknownWorkerError) as unknown:
        router.drain_worker("x")
    assert unknown.value.worker == "x"
    with pytest.raises(DuplicateWorkerError):
        router.add_worker(WORKERS[0])
    with pytest.raises(ConfigError) as config:
        router.add_worker("w", weight=65)
    assert config.value.key == "weight"
    wrong: Any
    for wrong in ([1, -1], [2**32], np.array([-1], dtype=np.int64), np.array([-1], dtype=np.int32)):
        with pytest.raises(TokenIdError):
            router.route(wrong)
    for wrong in (7, None, np.array([1.5]), [1, "a"]):
        with pytest.raises(TypeError):
            router.route(wrong)
    with pytest.raises(TypeError, match="one string"):
        router.route(PROMPT, eligible="http://a:1")
    with pytest.raises(UnicodeEncodeError):
        router.add_worker("\ud800")
    assert in_flight(router) == 0


def test_the_fleet_is_everybodys(router: SidecarRouter, path: Path) -> None:
    with SidecarRouter(path, timeout_s=20) as other:
        other.drain_worker(WORKERS[0])
        assert {router.route([number] * 32).worker for number in range(8)} == {WORKERS[1]}
        other.drain_worker(WORKERS[0], draining=False)
        other.remove_worker(WORKERS[1])
        other.add_worker("new", url="http://new")
        other.set_load("new", capacity_tokens=1000, healthy=True)
        other.set_policy("round_robin")
        decisions = [router.route([number] * 32) for number in range(4)]
        assert {(decision.worker, decision.url) for decision in decisions} == {
            (WORKERS[0], WORKERS[0] + "/v1"),
            ("new", "http://new"),
        }


def test_many_prompts_go_in_one_frame(router: SidecarRouter) -> None:
    decisions = router.route_many([PROMPT, np.arange(64, dtype=np.uint32), array.array("I", [])])
    assert [decision.matched_tokens for decision in decisions] == [0, 64, 0]
    with pytest.raises(NoWorkerAvailableError):
        router.route_many([PROMPT], eligible=[])
    assert sum(map(router.complete, decisions)) == 3
    assert in_flight(router) == 0
    large = router.route_many([PROMPT] * 3000)
    assert len({decision.id for decision in large}) == 3000


def test_a_lease_completes(router: SidecarRouter) -> None:
    def failing() -> None:
        with router.lease(PROMPT) as decision:
            assert decision.worker in WORKERS
            assert in_flight(router) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert in_flight(router) == 0


def test_threads_have_connections_of_their_own(router: SidecarRouter) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(50):
                with router.lease([number] * 16 + [turn] * 16) as decision:
                    assert router.first_token(decision)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert (in_flight(router), sum(router.stats().decisions.values())) == (0, 400)


def routed(router: SidecarRouter) -> tuple[str, int]:
    """Route in this process, and leave it booked."""
    decision = router.route(PROMPT)
    return decision.worker, decision.id


def test_processes_share_what_is_in_flight(start: Start, path: Path) -> None:
    start("--grace-s", "60")
    router = SidecarRouter(path, timeout_s=20)
    mine = router.route(PROMPT)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        theirs = pool.map(routed, [router] * 4)
        assert in_flight(router) == 5
    assert len({number for _, number in theirs} | {mine.id}) == 5
    # A decision may be completed in a process that did not make it.
    assert SidecarRouter(path, timeout_s=20).complete(pickle.loads(pickle.dumps(mine)))


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_child_is_a_client_of_its_own_and_leaves_nothing(start: Start, path: Path) -> None:
    start("--grace-s", "0.1")
    router = SidecarRouter(path, timeout_s=20)
    held = router.route(PROMPT)
    if (child := os.fork()) == 0:
        try:
            router.route(PROMPT)
            router.complete(router.route(PROMPT))
            os._exit(0 if in_flight(router) == 2 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    wait_for(lambda: in_flight(router) == 1, what="the child's booking is released")
    assert router.complete(held)


def test_a_forked_child_does_not_hold_its_parents_connections(start: Start, path: Path) -> None:
    start("--grace-s", "0.1")
    script = """
import os, sys, threading
from trunkline import SidecarRouter
router = SidecarRouter(sys.argv[1])
router.route("x")
forever = threading.Event()
threading.Thread(target=lambda: (router.route("y"), forever.wait()), daemon=True).start()
while router.stats().in_flight < 2:
    pass
if child := os.fork():
    print(child, flush=True)
sys.stdin.read()  # both end with the test, if not before
"""
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            router = SidecarRouter(path, timeout_s=20)
            assert in_flight(router) == 2
            parent.kill()
            wait_for(lambda: in_flight(router) == 0, what="its bookings are released")
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)


def test_a_killed_sidecar_is_an_error_and_a_new_one_is_found(start: Start, path: Path) -> None:
    first = start()
    router = SidecarRouter(path, timeout_s=20)
    decision = router.route(PROMPT)
    first.kill()
    first.wait(10)
    for _ in range(2):
        with pytest.raises(SidecarError, match="sidecar") as gone:
            router.route(PROMPT)
        assert isinstance(gone.value, ConnectionError)
    start()
    assert router.route(PROMPT).worker in WORKERS
    assert not router.complete(decision)
    assert in_flight(router) == 1


def test_a_restart_between_two_calls_is_not_seen(start: Start, path: Path) -> None:
    first = start()
    router = SidecarRouter(path, timeout_s=20)
    router.complete(router.route(PROMPT))
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    assert not path.exists()
    start()
    assert router.route(PROMPT).matched_tokens == 0


def test_a_restart_between_a_decision_and_its_name_gives_no_other_workers_name(
    impostor: Callable[[Behaviour], None], path: Path
) -> None:
    tags = iter(range(77, 100))

    def behave(connection: socket.socket) -> None:
        """Decide for worker 0 and be gone; the successor calls another one so."""
        question(connection)
        connection.sendall(frame(struct.pack("<BIQ", 0, 1, next(tags))))
        while asked := question(connection):
            if asked[0] == 1:
                connection.sendall(frame(struct.pack("<xQ8I", *[0] * 9)))
                return
            connection.sendall(frame(b'\0[{"slot": 0, "id": "other", "url": null}]'))

    impostor(behave)
    with pytest.raises(SidecarError, match="restarted"):
        SidecarRouter(path, timeout_s=20).route(PROMPT)


def test_a_sidecar_that_hangs_is_an_error_in_time(start: Start, path: Path) -> None:
    process = start()
    router = SidecarRouter(path, timeout_s=0.2)
    router.complete(router.route(PROMPT))
    process.send_signal(signal.SIGSTOP)
    state = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", what="it is stopped")
    with pytest.raises(SidecarError, match="timed out"):
        router.route(PROMPT)
    process.send_signal(signal.SIGCONT)
    patient = SidecarRouter(path, timeout_s=20)
    assert patient.route(PROMPT).worker in WORKERS
    wait_for(lambda: in_flight(patient) == 1, what="the answer that nobody waited for holds nothing")


def in_drops(connection: socket.socket) -> None:
    """Answer so slowly that it takes 20 s, and never keep anybody waiting for long."""
    greet(connection)
    question(connection)
    for byte in frame(b"\0" * 1000):
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def with_small_sips(connection: socket.socket) -> None:
    """Take a question in pieces, with a pause after each, and answer it."""
    greet(connection)
    (left,) = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))
    while left:
        left -= len(connection.recv(min(left, 1 << 16)))
        time.sleep(0.02)
    connection.sendall(frame(struct.pack("<xQ8I", *[0] * 9)))


@pytest.mark.parametrize("behave", [in_drops, with_small_sips])
def test_a_question_and_its_answer_are_due_together(
    impostor: Callable[[Behaviour], None], path: Path, behave: Behaviour
) -> None:
    impostor(behave)
    with pytest.raises(SidecarError, match="timed out"):
        SidecarRouter(path, timeout_s=0.3).route(b"x" * (16 << 20))


@pytest.mark.parametrize("says_hello", [True, False])
def test_signals_do_not_put_off_what_is_due(
    impostor: Callable[[Behaviour], None], path: Path, *, says_hello: bool
) -> None:
    def hang(connection: socket.socket) -> None:
        if says_hello:
            greet(connection)
        while connection.recv(4096):
            pass

    impostor(hang)
    signals = iter(range(200))
    with handled(signal.SIGALRM, lambda: next(signals)):
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            with pytest.raises(SidecarError, match="timed out"):
                SidecarRouter(path, timeout_s=0.5).stats()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("says_hello", [True, False])
@pytest.mark.parametrize("error", [TimeoutError, ConnectionError, EOFError])
def test_what_a_signals_handler_raises_is_raised(
    impostor: Callable[[Behaviour], None], path: Path, error: type[Exception], *, says_hello: bool
) -> None:
    main, is_done = threading.main_thread().ident, threading.Event()
    assert main is not None
    answers = iter([False])

    def behave(connection: socket.socket) -> None:
        may_answer = next(answers, True)
        if says_hello or may_answer:
            greet(connection)
        while question(connection):
            while not may_answer and not is_done.wait(0.05):
                signal.pthread_kill(main, signal.SIGUSR1)
            connection.sendall(frame(b'\0{"policy": "x"}'))

    def leave() -> None:
        if not is_done.is_set():
            is_done.set()
            raise error("by the handler")

    impostor(behave)
    router = SidecarRouter(path, timeout_s=20)
    with handled(signal.SIGUSR1, leave):
        with pytest.raises(error, match="by the handler"):
            router.stats()
        assert router.policy == "x"


def test_a_signals_handler_may_end_the_wait_for_a_connection(path: Path) -> None:
    def leave() -> None:
        raise TimeoutError("by the handler")

    with contextlib.ExitStack() as stack:
        listener, first = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))  # and now nobody else is let in
        with pytest.raises(SidecarError, match="timed out"):
            SidecarRouter(path, timeout_s=0.1).stats()
        stack.enter_context(handled(signal.SIGALRM, leave))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="by the handler"):
            SidecarRouter(path, timeout_s=20).stats()
        assert time.monotonic() - began < 10


def test_a_signals_handler_may_ask_while_an_answer_is_waited_for(
    impostor: Callable[[Behaviour], None], path: Path
) -> None:
    main, asked = threading.main_thread().ident, threading.Event()
    assert main is not None
    first = iter([True])

    def behave(connection: socket.socket) -> None:
        greet(connection)
        is_first = next(first, False)
        while question(connection):
            if is_first:
                while not asked.wait(0.05):
                    signal.pthread_kill(main, signal.SIGUSR1)
            asked.set()
            connection.sendall(frame(b'\0{"policy": "%s"}' % (b"outer" if is_first else b"inner")))

    impostor(behave)
    router, inner = SidecarRouter(path, timeout_s=20), []
    with handled(signal.SIGUSR1, lambda: inner.append(router.policy)):
        assert router.policy == "outer"
    assert set(inner) == {"inner"}


@pytest.mark.parametrize("answer", [b"\0", b"\0odd", b"\1", b"\1odd", b"\2[]", b"\3{}", b"\x63{}", b"\0" + b"x" * 100])
def test_what_is_no_sidecar_is_told_so(impostor: Callable[[Behaviour], None], path: Path, answer: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        greet(connection)
        while question(connection):
            connection.sendall(frame(answer))

    impostor(behave)
    router = SidecarRouter(path, timeout_s=20)
    for ask in (lambda: router.route(PROMPT), router.stats, lambda: router.peek(PROMPT)):
        with pytest.raises(SidecarError, match="no sidecar"):
            ask()


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_time_out_out_of_range_is_refused(path: Path, timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        SidecarRouter(path, timeout_s=timeout_s)


def test_a_question_that_is_too_large_is_told_so(router: SidecarRouter) -> None:
    with pytest.raises(SidecarError, match="allowed are 1 to 67108864"):
        router.route(b"x" * (65 << 20))
    assert router.route(PROMPT).prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("name", ["prompt_tokens", "cached_tokens", "completion_tokens"])
def test_usage_out_of_range_is_refused_as_by_a_router_here(router: SidecarRouter, name: str) -> None:
    local = Router()
    local.add_worker("a")
    wrong: list[tuple[Any, type[Exception]]] = [(-1, OverflowError), (2**32, OverflowError), (1.5, TypeError)]
    for value, error in wrong:
        for asked in (router, local):
            with pytest.raises(error):
                asked.complete(asked.route(PROMPT), **{name: value})


def test_a_second_sidecar_on_the_socket_does_not_start(start: Start, path: Path) -> None:
    start()
    command = [sys.executable, "-m", "trunkline", "sidecar", "--socket", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, env=clean_environment())
    assert done.returncode == 1
    assert "cannot listen" in done.stderr


def stored(handle: int, tokens: list[int], **fields: Any) -> bytes:
    event = {
        "type": "BlockStored",
        "block_hashes": [handle],
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": 16,
        "lora_id": None,
    }
    return msgspec.msgpack.encode([0.0, [event | fields], 0])


def test_events_come_through_it_as_to_a_router_here(path: Path) -> None:
    local, remote = Router(seed=1), Router(seed=1)
    block, image = list(range(16)), extra_hash("image", 3)
    with Sidecar(remote, path), SidecarRouter(path, timeout_s=20) as asking:
        for router in (local, asking):
            router.add_worker("a")
            router.add_worker("b")
            router.set_cache_view("b", "events")
            applied = router.apply_events("b", stored(1, block))
            assert (applied.stored, applied.refused, applied.cleared) == (1, 0, False)
            router.apply_events("b", stored(2, block, lora_name="adapter"))
            router.apply_events("b", stored(3, block, extra_keys=[[["image", 3]]]))
        prompt = [*block, 99]
        for told in ({}, {"lora": "adapter"}, {"extras": [image]}, {"lora": "other"}, {"salt": "x"}, {"extras": [1]}):
            arguments: Any = told
            here, there = local.route(prompt, **arguments), asking.route(prompt, **arguments)
            assert there.told_tokens == here.told_tokens, told
            assert asking.peek(prompt, **arguments).workers == local.peek(prompt, **arguments).workers
            local.complete(here)
            asking.complete(there)
        for router in (local, asking):
            router.forget_events("b")
            assert router.route(prompt).told_tokens is None
        with pytest.raises(PayloadError):
            asking.apply_events("b", b"\xc1 no payload")
        with pytest.raises(UnknownWorkerError):
            asking.apply_events("c", stored(1, block))
        with pytest.raises(ConfigError, match="view"):
            asking.set_cache_view("b", "none of these")


def test_a_snapshot_of_it_is_a_router(router: SidecarRouter) -> None:
    decision = router.route(PROMPT)
    saved = Router.restore(router.snapshot())
    assert saved.peek(PROMPT).workers == router.peek(PROMPT).workers == {decision.worker: len(PROMPT)}


def test_a_prompt_may_ask_the_same_router_while_it_is_read(router: SidecarRouter) -> None:
    class Asking(list[int]):
        def __iter__(self) -> Iterator[int]:
            assert router.peek(PROMPT).matched_tokens == 0
            return super().__iter__()

    router.route(Asking(PROMPT))
    assert router.peek(PROMPT).matched_tokens == len(PROMPT)


# Whatever an argument may be, it is not all of these.
ODD: list[Any] = [
    None,
    True,
    -1,
    2**32,
    2**64,
    1.5,
    "x",
    "\ud800",
    b"x",
    bytearray(b"x"),
    [],
    [-1],
    [2**64],
    ["\ud800"],
    {},
    object(),
]
GOOD: dict[str, Any] = {
    "id": "a",
    "payload": b"",
    "view": "events",
    "policy": "round_robin",
    "prompt": PROMPT,
}


def methods() -> list[tuple[str, str]]:
    """Return every method of a `SidecarRouter` that a `Router` has too, with each of its arguments."""
    return [
        (name, argument)
        for name, method in vars(SidecarRouter).items()
        if not name.startswith("_") and callable(method) and hasattr(Router, name)
        for argument in inspect.signature(method).parameters
        if argument not in ("self", "arguments")
    ]


@pytest.mark.parametrize(("method", "argument"), methods(), ids=".".join)
def test_what_a_router_here_refuses_is_refused_alike(path: Path, method: str, argument: str) -> None:
    for odd in ODD:
        raised = []
        local, remote = Router(), Router()
        with Sidecar(remote, path), SidecarRouter(path, timeout_s=20) as asking:
            for router in (local, asking):
                router.add_worker("a")
                known: dict[str, Any] = {"decision": router.route(PROMPT), **GOOD}
                wanted = inspect.signature(getattr(SidecarRouter, method)).parameters
                arguments = {name: known[name] for name in wanted if name in known} | {argument: odd}
                error: type[BaseException] | None = None
                try:
                    getattr(router, method)(**arguments)
                except Exception as refused:
                    error = type(refused)
                raised.append(error)
        assert raised[0] is raised[1], odd
