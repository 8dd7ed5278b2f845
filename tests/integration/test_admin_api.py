"""The admin API answers as its OpenAPI document says, whatever schemathesis asks of it.

SCHEMATHESIS_SEED chooses other requests than those of seed 1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import MakeWorkers, Serve, wait_for

SETTINGS = Path(__file__).with_name("schemathesis.toml")
SEED = os.environ.get("SCHEMATHESIS_SEED", "1")
TOKEN = "an-admin-token-of-some-length"  # noqa: S105 (made up)


def schemas(found: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document that is the schema of an object."""
    if isinstance(found, dict):
        if found.get("type") == "object" and "properties" in found:
            yield found
        for value in found.values():
            yield from schemas(value)
    elif isinstance(found, list):
        for value in found:
            yield from schemas(value)


def strict(document: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Narrow the document to this gateway: these workers, no field that is not in it, and never without the token."""
    document["components"]["schemas"]["WorkerUrl"] = {"type": "string", "enum": urls}
    added = document["paths"]["/admin/workers"]["post"]["requestBody"]["content"]["application/json"]
    added["examples"]["capped"]["value"]["url"] = urls[-1]
    document["security"].remove({})
    for schema in schemas(document):
        # One that requires what it does not describe is open on purpose.
        if set(schema.get("required", ())) <= schema["properties"].keys():
            schema["additionalProperties"] = False
    return document


@pytest.mark.timeout(120)
def test_answers_are_those_of_the_document(serve: Serve, make_workers: MakeWorkers, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    workers = make_workers(3)
    trial = ("--trial-policy", "random", "--trial-share", "0.5", "--shadow-policy", "prefix_aware")
    served = serve(workers[:2], "--admin-token-file", str(token_file), *trial)
    header = {"authorization": f"Bearer {TOKEN}"}
    assert served.call("GET", "/admin/openapi.json", admin=True).status == 401
    document = served.call("GET", "/admin/openapi.json", admin=True, headers=header).json()
    urls = [worker.url for worker in workers]
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(strict(document, [*urls, urls[0].upper() + "/"])))

    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(SETTINGS), "--no-color", "run"]
    command += [str(file), "--url", served.admin_url, "--header", f"Authorization: Bearer {TOKEN}"]
    command += ["--seed", SEED, "--max-examples", "20", "--continue-on-failure", "--generation-database", "none"]
    command += ["--report-har-path", str(tmp_path / "requests.har")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    print(done.stdout, done.stderr, f"SCHEMATHESIS_SEED={SEED}", sep="\n")
    assert done.returncode == 0

    seen = answers(tmp_path / "requests.har")
    assert seen >= {
        ("POST /admin/workers", 201),
        ("POST /admin/workers", 409),
        ("DELETE /admin/workers", 200),
        ("POST /admin/workers/{id}/drain", 200),
        ("POST /admin/explain", 200),
        ("GET /admin/trial", 200),
        ("POST /admin/trial/share", 200),
        ("POST /admin/trial/ramp", 200),
        ("POST /admin/trial/stop", 200),
        ("POST /admin/trial/reset", 200),
        ("GET /admin/state", 200),
        ("GET /admin/state", 401),
    }
    # And it still serves.
    served.call("DELETE", f"/admin/workers?url={urls[0]}", admin=True, headers=header)
    assert served.call("POST", f"/admin/workers?url={urls[0]}", admin=True, headers=header).status == 201
    wait_for(lambda: served.chat("hello").status == 200, what="an answer")


def answers(report: Path) -> set[tuple[str, int]]:
    """Read which operations were answered with which statuses."""
    found = set()
    for entry in json.loads(report.read_text(encoding="utf-8"))["log"]["entries"]:
        path = urlsplit(entry["request"]["url"]).path
        path = re.sub(r"^/admin/workers/.+/drain$", "/admin/workers/{id}/drain", path)
        found.add((f"{entry['request']['method']} {path}", entry["response"]["status"]))
    return found
