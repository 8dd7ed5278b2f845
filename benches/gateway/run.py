"""Compare gateways in front of four workers: CPU per request, latency added, memory, start-up, spread.

One gateway core, load and workers on the other. Every round runs every gateway once, so that a busy neighbour meets all
of them; CPU time of the gateway's processes per request is the figure that survives one. A gateway that is not
installed is MISSING. Writes benches/results/gateway.json: each round's rows, and what was measured on what.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.bench.facts import facts

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches" / "results" / "gateway.json"
TOOLS = ROOT / "target" / "release" / "examples"
PEERS = ROOT / ".cache" / "gateway-peers"
WORKERS = 4
GATEWAY_CORE, LOAD_CORE = "0", "1"
READY_S = 60.0


@dataclass(frozen=True)
class Cell:
    """One kind of load."""

    name: str
    body_bytes: int
    connections: int
    stream: bool = False


CELLS = (
    Cell("8 KB, 1 connection", 8192, 1),
    Cell("8 KB, 64 connections", 8192, 64),
    Cell("64 KB, 64 connections", 65536, 64),
    Cell("SSE, 256 streams", 8192, 256, stream=True),
)

NGINX = """\
daemon off; worker_processes 1; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 128k; keepalive_requests 1000000;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream workers {{ {servers} keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


class MissingError(Exception):
    """A gateway that is not installed, or does not start."""


def commands(port: int, urls: list[str], folder: Path) -> dict[str, list[str]]:
    """Return how each gateway is started, by its name; `direct` is no gateway."""
    config = folder / "nginx.conf"
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
    config.write_text(NGINX.format(port=port, servers=servers), encoding="utf-8")
    each = [word for url in urls for word in ("--worker", url)]
    ours = [
        sys.executable,
        "-m",
        "trunkline",
        "serve",
        "--port",
        str(port),
        "--admin-port",
        "0",
        "--threads",
        "1",
        *each,
    ]
    peer = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, "--log-level", "error"]
    peer += ["--prometheus-port", str(free_port()), "--policy", "cache_aware"]
    return {
        "direct": [],
        "nginx": ["nginx", "-p", str(folder), "-c", str(config)],
        "hyper pass-through": [str(TOOLS / "passthrough"), "--port", str(port), *each],
        "trunkline kv_aware": ours,
        "trunkline round_robin": [*ours, "--policy", "round_robin"],
        "vllm-router cache_aware": [
            *(str(PEERS / "vllm-router" / "bin" / "vllm-router"), *peer),
            *("--worker-startup-check-interval", "1"),
        ],
        "smg cache_aware": [
            *(str(PEERS / "smg" / "bin" / "smg"), "launch", *peer),
            "--disable-tokenizer-autoload",
        ],
        "sglang-router cache_aware": [str(PEERS / "sglang-router" / "bin" / "sglang-router"), "launch", *peer],
    }


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes(root: int) -> list[int]:
    """Return a process and all it has started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(path.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of all threads of these processes."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(path.read_text().split()[0])
    return total / 1e9


def rss_mb(pids: list[int]) -> float:
    """Return the resident memory of these processes."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def pinned(command: list[str], core: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of its own session on one core; end it and all it started."""
    if shutil.which(command[0]) is None:
        raise MissingError(f"{Path(command[0]).name} is not installed")
    with subprocess.Popen(
        ["taskset", "-c", core, *command],  # noqa: S607
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> float:
    """Return the time until the first good answer."""
    started = time.monotonic()
    body = b'{"model":"mock","messages":[{"role":"user","content":"hello"}],"max_tokens":4}'
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    while time.monotonic() - started < READY_S and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 (our own URL)
                answer.read()
            return time.monotonic() - started
        except OSError:
            time.sleep(0.01)
    raise MissingError("it does not start")


def load(cell: Cell, port: int, seconds: float) -> dict[str, Any]:
    """Run one cell."""
    words = {
        "port": port,
        "connections": cell.connections,
        "body-bytes": cell.body_bytes,
        "stream": int(cell.stream),
        "seconds": seconds,
    }
    flags = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    command = ["taskset", "-c", LOAD_CORE, str(TOOLS / "bench_load"), *flags]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(name: str, command: list[str], ports: tuple[int, int], seconds: float) -> list[dict[str, Any]]:
    """Run all cells through one gateway, freshly started; `ports` are the gateway's and a worker's."""
    if not command:
        return [{"gateway": name, "cell": cell.name, **load(cell, ports[1], seconds)} for cell in CELLS]
    rows = []
    with pinned(command, GATEWAY_CORE) as process:
        start_s = wait_until_ready(process, ports[0])
        pids = processes(process.pid)
        start_rss = rss_mb(pids)
        for cell in CELLS:
            before = cpu_s(pids)
            found = load(cell, ports[0], seconds)
            found["cpu_us"] = (cpu_s(pids) - before) / found["sent"] * 1e6
            found |= {"rss_mb": rss_mb(pids), "start_s": start_s, "start_rss_mb": start_rss}
            rows.append({"gateway": name, "cell": cell.name, **found})
    return rows


def main() -> None:
    """Measure, and write the raw rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="per cell")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    worker_ports = [free_port() for _ in range(WORKERS)]
    urls = [f"http://127.0.0.1:{port}" for port in worker_ports]
    with pinned([str(TOOLS / "bench_worker"), *map(str, worker_ports)], LOAD_CORE):
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                port = free_port()
                for name, command in commands(port, urls, Path(folder)).items():
                    if name in missing:
                        continue
                    try:
                        found = measure(name, command, (port, worker_ports[0]), options.seconds)
                    except MissingError as error:
                        missing[name] = str(error)
                        print(f"{name}: MISSING ({error})", flush=True)
                        continue
                    rows += [{"round": number, **row} for row in found]
                    print(number, name, [round(row.get("cpu_us", 0), 1) for row in found], flush=True)
    about = facts("make bench-gateway")
    about["versions"] |= versions()
    document = {
        "kind": "gateway",
        "facts": about,
        "setup": {"rounds": options.rounds, "seconds": options.seconds, "workers": WORKERS},
        "missing": missing,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of the other gateways that are installed."""
    found = {}
    if nginx := shutil.which("nginx"):
        said = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=True).stderr
        found["nginx"] = said.rsplit("/", 1)[-1].strip()
    for peer in ("vllm-router", "smg", "sglang-router"):
        for path in (PEERS / peer).glob("lib/python*/site-packages/*.dist-info"):
            name, _, version = path.stem.rpartition("-")
            if name.replace("_", "-") == peer:
                found[peer] = version
    return found


if __name__ == "__main__":
    main()
