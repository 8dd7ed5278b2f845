"""API keys and the admin token as an operator and a client use them; Unix sockets; changed files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.support import MakeWorkers, Serve, Served, clean_environment, wait_for


def trunkline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", *arguments]
    env = clean_environment() | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)


def new_key(name: str, *arguments: str) -> dict[str, str]:
    done = trunkline("key", "new", "--name", name, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def client(served: Served, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, timeout=30)


def say(client: openai.OpenAI, text: str) -> Any:
    return client.chat.completions.create(model="mock", messages=[{"role": "user", "content": text}], max_tokens=2)


def test_a_key_of_the_command_line_admits_openais_client(
    serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    alice, bob = new_key("alice", "--requests-per-minute", "3"), new_key("bob", "--tokens-per-minute", "50")
    keys = tmp_path / "keys"
    keys.write_text(f"# who may call\n{alice['line']}\n{bob['line']}\n")
    token = tmp_path / "admin-token"
    token.write_text("an-admin-token-of-some-length\n")
    served = serve(make_workers(1), "--api-keys-file", str(keys), "--admin-token-file", str(token))

    with client(served, "tk-wrong") as stranger, pytest.raises(openai.AuthenticationError) as refused:
        say(stranger, "hello")
    assert refused.value.response.headers["www-authenticate"] == "Bearer"
    with client(served, alice["token"]) as friend:
        for _ in range(3):
            assert say(friend, "hello").choices
        with pytest.raises(openai.RateLimitError) as limited:
            say(friend, "hello")
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 20
    with client(served, bob["token"]) as friend:
        say(friend, "word " * 100)
        with pytest.raises(openai.RateLimitError):
            say(friend, "hello")

    assert served.call("GET", "/metrics", admin=True).status == 401
    done = trunkline("workers", "--admin", served.admin_url)
    assert (done.returncode, "admin token" in done.stderr) == (1, True), done.stderr
    for arguments, environment in (
        (["--admin-token-file", str(token)], {}),
        ([], {"TRUNKLINE_ADMIN_TOKEN_FILE": str(token)}),
    ):
        done = trunkline("workers", "--admin", served.admin_url, *arguments, **environment)
        assert (done.returncode, "http://127.0.0.1" in done.stdout) == (0, True), done.stderr
        done = trunkline("explain", "hello", "--admin", served.admin_url, *arguments, **environment)
        assert done.returncode == 0, done.stderr

    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    log = "".join(served.log)
    for secret in (alice["token"], bob["token"], "tk-wrong", "an-admin-token-of-some-length"):
        assert secret not in log


def test_keys_are_made_as_they_are_read() -> None:
    first, second = new_key("a"), new_key("a", "--tenant", "t", "--tokens-per-minute", "7")
    assert first["token"] != second["token"]
    assert len(first["token"]) > 40
    assert first["token"] not in first["line"]
    assert second["line"].endswith(" tenant=t tokens_per_minute=7")
    for arguments in (["--name", "a b"], ["--name", ""], ["--name", "a", "--requests-per-minute", "0"], []):
        assert trunkline("key", "new", *arguments).returncode == 2
    shown = trunkline("key", "new", "--name", "a").stdout
    assert "tk-" in shown
    assert "name=a sha256=" in shown


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--api-keys-file", "name=a sha256=12\n", ["api_keys_file", "line 1", "64 hexadecimal digits"]),
        ("--admin-token-file", "short\n", ["admin_token_file", "16 or more"]),
        ("--worker-token-file", "two words that are long\n", ["worker_token_file", "16 or more"]),
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


def test_a_changed_file_swaps_workers_without_losing_a_request(
    serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    first, second, third = make_workers(3)
    file = tmp_path / "trunkline.toml"
    file.write_text(f'workers = ["{first.url}", "{second.url}"]\n')
    served = serve([], "--config", str(file))
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        number = 0
        while not over.is_set():
            number += 1
            statuses.append(served.chat(f"number {number}").status)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        wait_for(lambda: len(statuses) > 20)
        file.write_text(f'workers = ["{second.url}", "{third.url}"]\n')
        line = served.wait_for_log("reloaded")
        assert f"added {third.url}" in line
        assert f"removed {first.url}" in line
        wait_for(lambda: third.stats().requests > 5)
    finally:
        over.set()
        for asker in askers:
            asker.join(30)
    assert set(statuses) == {200}
    assert served.metric('trunkline_config_reloads_total{result="ok"}') == 1


def test_a_file_that_is_empty_for_a_moment_opens_nothing(
    serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    keys, later = tmp_path / "keys", tmp_path / "later"
    keys.write_text(new_key("alice")["line"] + "\n")
    file = tmp_path / "trunkline.toml"
    file.write_text(f'api_keys_file = "{keys}"\n')
    served = serve(make_workers(1), "--config", str(file))
    assert served.chat("hello").status == 401
    file.write_text("")
    served.signal(signal.SIGHUP)
    served.wait_for_log("reload refused", "api_keys_file")
    assert served.chat("hello").status == 401
    # A file that is missing yet is looked for, too.
    served.log.clear()
    file.write_text(f'api_keys_file = "{later}"\n')
    served.wait_for_log("reload refused", str(later))
    later.write_text(new_key("bob")["line"] + "\n")
    served.wait_for_log("reloaded")
    assert served.chat("hello").status == 401


def test_another_policy_is_in_force_after_a_signal(serve: Serve, make_workers: MakeWorkers, tmp_path: Path) -> None:
    workers = make_workers(2)
    file = tmp_path / "trunkline.toml"
    good = f"workers = {[worker.url for worker in workers]}\n"
    file.write_text(good)
    served = serve([], "--config", str(file))
    prompt = "the same prompt " * 40

    def chosen() -> set[str]:
        return {served.chat(prompt).headers["x-trunkline-worker"] for _ in range(6)}

    assert len(chosen()) == 1
    file.write_text(good + 'policy = "round_robin"\n')
    served.signal(signal.SIGHUP)
    served.wait_for_log("reloaded")
    assert len(chosen()) == 2


def test_what_cannot_be_changed_or_read_is_refused(serve: Serve, make_workers: MakeWorkers, tmp_path: Path) -> None:
    [worker] = make_workers(1)
    file = tmp_path / "trunkline.toml"
    good = f'workers = ["{worker.url}"]\n'
    file.write_text(good)
    served = serve([], "--config", str(file))
    for text, words in (
        ("workers = [", "valid TOML"),
        ("workers = " + "[" * 10_000, "valid TOML"),
        (good + 'tls_cert = "a\\u0000b"\n', "without NUL"),
        ("workers = []\n", "workers"),
        (good + "replicas = 2\n", "replicas = 2"),
        (good + 'policy = "best"\n', "policy = 'best'"),
        (good + "port = 1\n", ""),
        (good + "nonsense = 1\n", "nonsense"),
        (f'workers = ["{worker.url}", "{worker.url}/"]\n', "already in the fleet"),
    ):
        served.log.clear()
        before = served.metric('trunkline_config_reloads_total{result="refused"}')
        file.write_text(text)
        served.signal(signal.SIGHUP)
        if words:
            # The file may be seen before the signal comes, so what is said is waited for by its words.
            served.wait_for_log("reload refused", words)
            assert served.metric('trunkline_config_reloads_total{result="refused"}') > before
        else:
            # A flag of the command line wins over the file, before and after.
            served.wait_for_log("reloaded")
        assert served.chat("hello").status == 200
