"""Bad certificates at the start; Unix sockets."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support import MakeWorkers, Serve, clean_environment


def trunkline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=clean_environment())


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--tls-cert", "", ["tls_key = unset", "a file"]),
        ("--tls-client-ca", "", ["tls_cert = unset"]),
        ("--worker-tls-ca", "nonsense", ["worker_tls_ca", "no certificate"]),
    ],
)
def test_bad_files_stop_the_start_and_are_not_quoted(tmp_path: Path, flag: str, text: str, words: list[str]) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    arguments = ["--port", "0", "--admin-port", "0", "--worker", "http://127.0.0.1:1"]
    done = trunkline("serve", *arguments, flag, str(file))
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
    assert not text.strip() or text.strip() not in done.stderr
    done = trunkline("serve", *arguments, flag, str(tmp_path / "missing"))
    assert done.returncode == 2


def test_a_unix_socket_in_front(serve: Serve, make_workers: MakeWorkers, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    served = serve(make_workers(1), "--listen", f"unix:{path}")
    assert served.url == f"unix:{path}"
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), timeout=30) as client:
        body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        assert client.post("http://gateway/v1/chat/completions", json=body).status_code == 200
    outer = serve([served.url])
    assert outer.chat("hello").headers["x-trunkline-worker"] == served.url
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    assert not path.exists()
