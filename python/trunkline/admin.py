"""A client of a running gateway's admin API, for `trunkline workers`, `explain` and `ab`."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 10.0
# The admin port is on loopback or inside the cluster: no proxy of the environment stands before it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AdminError(Exception):
    """The gateway did not answer, or refused; the message says which."""


class Admin:
    """The admin API at a base URL such as ``http://127.0.0.1:8081``."""

    def __init__(self, url: str, *, token_file: Path | None = None) -> None:
        """Say where, and in which file its token is; nothing is asked yet.

        Raises AdminError for what is no HTTP URL, OSError for a file that cannot be read.
        """
        if not url.startswith(("http://", "https://")):
            raise AdminError(f"{url} is no URL of an admin port, such as http://127.0.0.1:8081")
        self.url = url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if token_file is not None:
            try:
                token = token_file.read_text(encoding="ascii").strip()
            except UnicodeDecodeError as odd:
                raise AdminError(f"{token_file} holds no token: {odd}") from odd
            self._headers["authorization"] = f"Bearer {token}"

    def workers(self) -> list[dict[str, Any]]:
        """Return what the gateway knows of each worker. Raises AdminError."""
        answer = self._call("GET", "/admin/workers")
        if not isinstance(answer, dict) or not isinstance(workers := answer.get("workers"), list):
            raise AdminError(f"{self.url} gave no list of workers; is it the admin port of a gateway?")
        return workers

    def add(self, url: str) -> Any:  # noqa: ANN401 (JSON)
        """Add a worker by its URL. Raises AdminError."""
        return self._call("POST", "/admin/workers", {"url": url})

    def remove(self, url: str) -> Any:  # noqa: ANN401 (JSON)
        """Remove a worker by its URL; what runs there goes on. Raises AdminError."""
        return self._call("DELETE", "/admin/workers?" + urllib.parse.urlencode({"url": url}))

    def drain(self, worker: str) -> Any:  # noqa: ANN401 (JSON)
        """Send a worker nothing new; by its id or URL. Raises AdminError."""
        return self._call("POST", f"/admin/workers/{urllib.parse.quote(worker, safe='')}/drain")

    def trial(self) -> dict[str, Any]:
        """Return what a trial and a shadow have come to. Raises AdminError."""
        return self._trials(self._call("GET", "/admin/trial"))

    def change_trial(self, what: str, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
        """Change the trial (`share`, `ramp`, `stop`, `reset`); return what it has come to. Raises AdminError."""
        return self._trials(self._call("POST", f"/admin/trial/{what}", wanted))

    def _trials(self, answer: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
        if not isinstance(answer, dict) or not {"trial", "shadow"} <= answer.keys():
            raise AdminError(f"{self.url} told of no trials; is it the admin port of a gateway?")
        return answer

    def explain(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the gateway would do now with a request to `path`, and why. Raises AdminError."""
        query = urllib.parse.urlencode({"path": path})
        answer: dict[str, Any] = self._call("POST", "/admin/explain?" + query, body)
        return answer

    def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 (JSON)
        data = None if body is None else json.dumps(body).encode()
        try:
            status, said = self._ask(method, path, data)
        # ValueError: the URL or the token cannot be sent.
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise AdminError(f"no answer from {self.url}: {getattr(fault, 'reason', fault)}") from fault
        if status >= http.client.BAD_REQUEST:
            raise AdminError(f"{self.url} refused: {_message(said)}")
        try:
            return json.loads(said or b"null")
        except (ValueError, RecursionError) as fault:
            raise AdminError(f"{self.url} gave no JSON; is it the admin port of a gateway?") from fault

    def _ask(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        url = self.url + path
        request = urllib.request.Request(url, data, self._headers, method=method)  # noqa: S310 (the scheme is checked)
        try:
            answer = _OPENER.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            return answer.status, answer.read()


def _message(body: bytes) -> str:
    """Take the message out of an OpenAI-shaped error."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "without a reason"
