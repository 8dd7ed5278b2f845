"""SageMaker's runtime, called with the real boto3 and openai clients."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from openai import OpenAI

from tests.support import MakeWorkers, Serve, Served, wait_for

if TYPE_CHECKING:
    from trunkline import MockWorker

SYSTEM = "You are a patient assistant of a parcel service. " * 60


Runtime: TypeAlias = Callable[[Served], Any]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """Make clients of SageMaker's runtime, at our address and with made-up credentials."""
    with contextlib.ExitStack() as stack:

        def make(served: Served) -> Any:
            client = boto3.client(
                "sagemaker-runtime",
                endpoint_url=served.url,
                region_name="eu-central-1",
                aws_access_key_id="none",
                aws_secret_access_key="none",  # noqa: S106 (nobody checks it)
                config=Config(retries={"max_attempts": 0}, read_timeout=30, connect_timeout=5),
            )
            stack.callback(client.close)
            return client

        yield make


def chat(question: str, system: str = SYSTEM, **fields: Any) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return json.dumps({"messages": messages, "max_tokens": 3} | fields).encode()


def invoke(client: Any, body: bytes, **fields: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the answer's document and headers."""
    answer = client.invoke_endpoint(
        **{"EndpointName": "llama-70b", "ContentType": "application/json", "Body": body} | fields
    )
    headers: dict[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return json.loads(answer["Body"].read()) | {"variant": answer["InvokedProductionVariant"]}, headers


def write_endpoints(folder: Path, variants: list[dict[str, Any]]) -> str:
    """Write a configuration with one endpoint; JSON is YAML as well."""
    file = folder / "trunkline.yaml"
    file.write_text(json.dumps({"endpoints": [{"name": "llama-70b", "variants": variants}]}))
    return str(file)


def test_invoke_endpoint_keeps_prefixes_and_parts_tenants(
    runtime: Runtime, serve: Serve, make_workers: MakeWorkers
) -> None:
    served = serve(make_workers(4))
    client = runtime(served)
    first, headers = invoke(client, chat("Where is it?"))
    assert (first["object"], first["variant"]) == ("chat.completion", "AllTraffic")
    again, its_headers = invoke(client, chat("And now?"))
    assert its_headers["x-trunkline-worker"] == headers["x-trunkline-worker"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 500
    homes = {invoke(client, chat("x"), PrefixAwareId=f"tenant-{n}")[1]["x-trunkline-worker"] for n in range(16)}
    assert len(homes) >= 3


def test_a_response_stream_brings_the_workers_events(runtime: Runtime, serve: Serve, make_workers: MakeWorkers) -> None:
    client = runtime(serve(make_workers(2)))
    answer = client.invoke_endpoint_with_response_stream(
        EndpointName="llama-70b",
        ContentType="application/json",
        Accept="text/event-stream",
        Body=chat("Where is it?", max_tokens=20, stream=True),
    )
    assert answer["ContentType"] == "text/event-stream; charset=utf-8"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    parts = [event["PayloadPart"]["Bytes"] for event in answer["Body"]]
    text = b"".join(parts)
    assert len(parts) > 1
    assert text.count(b"data: {") == 21
    assert text.endswith(b"data: [DONE]\n\n")


def refused(call: Callable[[], object]) -> tuple[str, int, dict[str, Any]]:
    """Return the error's name, its status, and all that the client read of it."""
    with pytest.raises(ClientError) as found:
        call()
    response: dict[str, Any] = dict(found.value.response)
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"], response


def test_errors_are_those_that_the_client_knows(runtime: Runtime, serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1)
    served = serve([worker])
    client = runtime(served)
    name, status, response = refused(lambda: invoke(client, b'{"prompt": "x", "max_tokens": "many"}'))
    assert (name, status, response["OriginalStatusCode"]) == ("ModelError", 424, 400)
    assert "max_tokens" in response["OriginalMessage"]
    assert response["Error"]["Message"].startswith("Received client error (400) from primary")
    with pytest.raises(client.exceptions.ModelError):
        client.invoke_endpoint_with_response_stream(EndpointName="e", ContentType="application/json", Body=b"{}")
    # The client itself refuses most headers out of range; this one it lets through.
    name, status, _ = refused(lambda: invoke(client, chat("x"), CustomAttributes="x" * 1025))
    assert (name, status) in {("ValidationError", 400), ("ParamValidation", 400)}
    worker.close()
    wait_for(lambda: served.call("GET", "/readyz", admin=True).status == 503)
    name, status, response = refused(lambda: invoke(client, chat("x")))
    assert (name, status) == ("ServiceUnavailable", 503)
    assert response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "1"


def test_a_worker_that_dies_in_a_stream_is_an_exception_of_the_stream(
    runtime: Runtime, serve: Serve, make_workers: MakeWorkers
) -> None:
    [worker] = make_workers(1, time_scale=1.0)
    client = runtime(serve([worker]))
    answer = client.invoke_endpoint_with_response_stream(
        EndpointName="e", ContentType="application/json", Body=chat("x", "short", max_tokens=2000, stream=True)
    )
    events = iter(answer["Body"])
    assert b"assistant" in next(events)["PayloadPart"]["Bytes"]
    worker.close()
    with contextlib.closing(answer["Body"]), pytest.raises(EventStreamError, match="ModelStreamError"):
        for _ in events:
            pass


def test_workers_that_never_were_well_are_not_ready(runtime: Runtime, serve: Serve) -> None:
    served = serve(["http://127.0.0.1:1"])
    wait_for(lambda: served.call("GET", "/readyz", admin=True).status == 503)
    name, status, _ = refused(lambda: invoke(runtime(served), chat("x")))
    assert (name, status) == ("ModelNotReadyException", 429)


def places(workers: list[MockWorker], **fields: str) -> list[dict[str, str]]:
    return [{"url": worker.url} | fields for worker in workers]


def test_variants_share_the_requests_by_weight(
    runtime: Runtime, serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    blue, green = make_workers(2), make_workers(1)
    variants: list[dict[str, Any]] = [
        {"name": "blue", "weight": 3, "routing_strategy": "LEAST_OUTSTANDING_REQUESTS", "workers": places(blue)},
        {"name": "green", "workers": places(green), "routing_strategy": "RANDOM"},
    ]
    client = runtime(serve([], "--config", write_endpoints(tmp_path, variants)))
    shares, hosts = Counter[str](), Counter[str]()
    for number in range(80):
        document, headers = invoke(client, chat(str(number), "short"))
        shares[document["variant"]] += 1
        hosts[headers["x-trunkline-worker"]] += 1
    assert 45 <= shares["blue"] <= 75, shares
    assert hosts[green[0].url] == shares["green"]
    assert min(hosts[worker.url] for worker in blue) >= 10
    document, _ = invoke(client, chat("x"), TargetVariant="green")
    assert document["variant"] == "green"
    assert refused(lambda: invoke(client, chat("x"), TargetVariant="red"))[:2] == ("ValidationError", 400)
    assert refused(lambda: invoke(client, chat("x"), EndpointName="other"))[:2] == ("ValidationError", 400)


def test_a_component_stays_on_its_copies(
    runtime: Runtime, serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    chats, codes = make_workers(3), make_workers(1)
    variant = {
        "name": "AllTraffic",
        "routing_strategy": "PREFIX_AWARE",
        "prefix_length": 1024,
        "concurrency_threshold": 10,
        "workers": [
            *places(chats[:2], instance="i-1", component="chat"),
            *places(chats[2:], instance="i-2", component="chat"),
            *places(codes, instance="i-2", component="code"),
        ],
    }
    served = serve([], "--config", write_endpoints(tmp_path, [variant]))
    client = runtime(served)
    hosts: dict[str, set[str]] = {}
    for number in range(48):
        group = str(number % 12)
        _, headers = invoke(client, chat(str(number), group * 1200), InferenceComponentName="chat")
        hosts.setdefault(group, set()).add(headers["x-trunkline-worker"])
    assert all(len(found) == 1 for found in hosts.values()), hosts
    assert set.union(*hosts.values()) == {worker.url for worker in chats}
    with OpenAI(
        base_url=f"{served.url}/endpoints/llama-70b/openai/v1",
        api_key="none",
        max_retries=0,
        timeout=30,
        default_headers={"X-Amzn-SageMaker-Inference-Component": "code"},
    ) as openai:
        raw = openai.chat.completions.with_raw_response.create(
            model="mock", messages=[{"role": "user", "content": "x"}], extra_body={"prompt_cache_key": "t"}
        )
    assert raw.headers["x-trunkline-worker"] == codes[0].url
    assert raw.headers["x-amzn-invoked-production-variant"] == "AllTraffic"
    assert refused(lambda: invoke(client, chat("x")))[:2] == ("ValidationError", 400)
