"""The settings of `trunkline serve`: the one table of their names, ranges, defaults and meanings."""

# Annotations are what this module is made of, and are read while it runs: they are not put off.
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .field import SettingsError
from .kinds import (
    ContentFormatName,
    EventsName,
    File,
    Host,
    ListenAt,
    Name,
    PolicyName,
    Port,
    ProtocolName,
    Size,
    TokenizerAt,
    TrialByName,
    Url,
    WorkerCap,
)
from .settings import Settings

# Settings of what is tried on a part of the traffic; a reload that changes one begins the trial anew.
TRIAL = ("trial_policy", "trial_pool", "trial_share", "trial_by", "shadow_policy")

# Settings of files whose content may change while the gateway serves.
FILES = (
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "worker_tls_ca",
    "worker_tls_cert",
    "worker_tls_key",
    "worker_token_file",
    "api_keys_file",
    "admin_token_file",
)


class VariantWorker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker of a production variant: with `component`, one copy of that inference component.

    instance: the machine that it runs on, as any name; a copy at its threshold spills to another one there first.
    """

    url: Url
    instance: Name | None = None
    component: Name | None = None


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A production variant: a share (`weight`) of an endpoint's requests, its workers, and how one of them is chosen.

    prefix_length, concurrency_threshold: of PREFIX_AWARE, which needs both; SageMaker's ranges.  The default strategy
    is KV_AWARE, because it is what this gateway is for; SageMaker's own is RANDOM.
    """

    name: Name
    workers: Annotated[tuple[VariantWorker, ...], Meta(min_length=1)]
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    routing_strategy: Literal["RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "KV_AWARE"] = "KV_AWARE"
    prefix_length: Annotated[int, Meta(ge=1024, le=65536)] | None = None
    concurrency_threshold: Annotated[int, Meta(ge=1, le=1024)] | None = None

    def __post_init__(self) -> None:
        """Refuse parameters without their strategy, and the strategy without its parameters."""
        given = [value is not None for value in (self.prefix_length, self.concurrency_threshold)]
        if given != [self.routing_strategy == "PREFIX_AWARE"] * 2:
            raise ValueError("PREFIX_AWARE needs prefix_length and concurrency_threshold, the others take neither")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An endpoint of SageMaker: what clients name in `/endpoints/{name}/...`, and the variants behind it."""

    name: Name
    variants: Annotated[tuple[Variant, ...], Meta(min_length=1)]


class ServeSettings(Settings, frozen=True, kw_only=True):
    """Settings of `trunkline serve`."""

    host: Annotated[Host, Meta(description="Address of the data port; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Data port; 0 takes a free one.")] = 8080
    listen: Annotated[
        ListenAt | None, Meta(description="Where clients connect, in one word, instead of host and port.")
    ] = None
    admin_host: Annotated[Host, Meta(description="Address of the admin port; see admin_token_file.")] = "127.0.0.1"
    admin_port: Annotated[Port, Meta(description="Port of /metrics, /readyz and /admin; 0 takes a free one.")] = 8081
    workers: Annotated[
        tuple[Url, ...],
        Meta(
            min_length=1,
            description="URL of a worker; a flag for each, in a file or the environment a list. "
            "Its engine is found out unless #engine= tells it.",
        ),
    ] = ()
    policy: Annotated[PolicyName, Meta(description="How workers are chosen.")] = "kv_aware"
    memory_budget: Annotated[Size, Meta(description="Hard limit of the prefix index, from 1MiB.")] = "256MiB"
    events: Annotated[
        EventsName, Meta(description="Whether workers' KV events are followed; auto is where there is a tokenizer.")
    ] = "auto"
    events_budget: Annotated[Size, Meta(description="Hard limit of what events tell, from 1MiB.")] = "1GiB"
    tokenizers: Annotated[
        tuple[TokenizerAt, ...],
        Meta(
            description="Directory of a model's tokenizer and chat template: prompts are then matched with what "
            "workers tell. A flag for each model."
        ),
    ] = ()
    time_zone: Annotated[
        str, Meta(min_length=1, description="Time zone of the workers, for chat templates that tell the date.")
    ] = "UTC"
    chat_template: Annotated[File | None, Meta(description="The workers' --chat-template, if they have one.")] = None
    chat_template_content_format: Annotated[
        ContentFormatName, Meta(description="The workers' setting of this name.")
    ] = "auto"
    chat_template_kwargs: Annotated[
        Annotated[str, Meta(extra={"allowed": "a JSON object", "metavar": "JSON"})] | None,
        Meta(description="The workers' --default-chat-template-kwargs."),
    ] = None
    exclude_unused_tools: Annotated[
        bool, Meta(description="Whether the workers run with --exclude-tools-when-tool-choice-none.")
    ] = False
    check_every: Annotated[
        int,
        Meta(
            ge=0, le=1_000_000_000, description="Compare one in so many prompts with the engine's own; 0 compares none."
        ),
    ] = 0
    load_signals: Annotated[
        EventsName,
        Meta(description="Whether workers are asked for the load that others give them; auto is with replicas."),
    ] = "auto"
    replicas: Annotated[
        int, Meta(ge=1, le=1000, description="Gateways in front of the same workers, this one included.")
    ] = 1
    prefix_length: Annotated[
        int,
        Meta(
            ge=1024,
            le=65536,
            description="Characters of a prompt that prefix_aware hashes; a shorter one is hashed whole.",
        ),
    ] = 4096
    concurrency_threshold: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Requests in flight at which prefix_aware leaves a worker; unset is 1.5 x the mean."),
    ] = None
    trial_policy: Annotated[
        PolicyName | None, Meta(description="Policy of a trial's arm B; unset is that of arm A.")
    ] = None
    trial_pool: Annotated[
        Name | None,
        Meta(
            description="Workers of a trial's arm B, those with #pool=NAME behind their URL; arm A then has all others."
        ),
    ] = None
    trial_share: Annotated[
        float, Meta(ge=0, le=1, description="Arm B's share at the start; `trunkline ab` changes it.")
    ] = 0.0
    trial_by: Annotated[
        TrialByName, Meta(description="Whether a tenant's requests all get one arm, or each request by chance.")
    ] = "tenant"
    shadow_policy: Annotated[
        PolicyName | None,
        Meta(description="A policy that decides beside the live one and routes nothing; takes memory_budget again."),
    ] = None
    threads: Annotated[int, Meta(ge=0, le=256, description="Threads that carry requests; 0 is one per core.")] = 0
    max_body: Annotated[Size, Meta(description="Largest request body, 1KiB to 4GiB.")] = "64MiB"
    connect_timeout_s: Annotated[
        float, Meta(ge=0.001, le=60, description="Longest wait for a connection to a worker.")
    ] = 2.0
    first_byte_timeout_s: Annotated[
        Annotated[float, Meta(ge=0.001, le=86400)] | None,
        Meta(description="Longest wait for the head of a worker's answer; unset waits for ever."),
    ] = None
    idle_timeout_s: Annotated[
        Annotated[float, Meta(ge=0.01, le=86400)] | None,
        Meta(description="Longest silence of a worker within its answer; null allows any."),
    ] = 300.0
    max_in_flight: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="Most requests in flight on one worker; more go elsewhere or wait. Unset is no cap."),
    ] = None
    worker_caps: Annotated[
        tuple[WorkerCap, ...],
        Meta(description="The same for one worker, 0 for no cap: a flag each, or a list in a file or the environment."),
    ] = ()
    max_queued: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Most requests that wait while all workers are busy; 0 waits never.")
    ] = 1024
    queue_timeout_s: Annotated[
        float, Meta(ge=0.001, le=3600, description="Longest wait of such a request; then it gets 429 or 503.")
    ] = 3.0
    retry_budget: Annotated[
        float, Meta(ge=0, le=1, description="Requests that may be sent again, as a share of those of ten seconds.")
    ] = 0.2
    hang_detection: Annotated[
        bool, Meta(description="Send nothing new to workers that have requests and show no byte for too long.")
    ] = True
    slow_start_s: Annotated[
        float, Meta(ge=0, le=600, description="Time in which a new or recovered worker comes up to its share.")
    ] = 2.0
    probe_interval_s: Annotated[
        float, Meta(ge=0.02, le=60, description="Time between two health probes of a worker.")
    ] = 1.0
    drain_timeout_s: Annotated[
        float, Meta(ge=0, le=86400, description="After SIGTERM, longest wait for running requests.")
    ] = 30.0
    annotate: Annotated[bool, Meta(description="Add x-trunkline-* headers to answers.")] = True
    endpoints: Annotated[
        tuple[Endpoint, ...],
        Meta(description="SageMaker endpoints with their variants and workers; tables of a file only."),
    ] = ()
    tls_cert: Annotated[File | None, Meta(description="Certificate chain (PEM): clients then speak TLS.")] = None
    tls_key: Annotated[File | None, Meta(description="Private key (PEM) of tls_cert.")] = None
    tls_client_ca: Annotated[
        File | None, Meta(description="Authorities (PEM) of client certificates, which are then required.")
    ] = None
    worker_protocol: Annotated[
        ProtocolName, Meta(description="How workers are spoken to; h2 needs workers that know it.")
    ] = "http1"
    worker_tls_ca: Annotated[
        File | None, Meta(description="Authorities (PEM) of https:// workers; unset takes the system's.")
    ] = None
    worker_tls_cert: Annotated[File | None, Meta(description="Certificate (PEM) shown to https:// workers.")] = None
    worker_tls_key: Annotated[File | None, Meta(description="Private key (PEM) of worker_tls_cert.")] = None
    worker_token_file: Annotated[
        File | None, Meta(description="Token that workers get as Authorization: Bearer, in place of the client's.")
    ] = None
    api_keys_file: Annotated[
        File | None, Meta(description="Keys of clients, see `trunkline key new`; without a key a request is refused.")
    ] = None
    admin_token_file: Annotated[
        File | None, Meta(description="Token that the admin port wants, but for /livez and /readyz.")
    ] = None
    max_header: Annotated[Size, Meta(description="Largest head of a request, 8KiB to 1MiB.")] = "64KiB"
    max_headers: Annotated[int, Meta(ge=1, le=10000, description="Most header lines of a request.")] = 100
    max_connections_per_client: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="Most connections of one address (IPv6: /64) at a time; unset does not limit them."),
    ] = None
    header_timeout_s: Annotated[
        float, Meta(ge=0.01, le=3600, description="Longest time for a request's head, and for a TLS handshake.")
    ] = 10.0
    client_idle_timeout_s: Annotated[
        float, Meta(ge=0.01, le=86400, description="Longest time that a connection may be without a request.")
    ] = 75.0
    max_streams: Annotated[
        int, Meta(ge=1, le=10000, description="Most requests at a time on one HTTP/2 connection.")
    ] = 128

    def __post_init__(self) -> None:
        """Refuse a share of what is not there."""
        if self.trial_share and self.trial_policy is None and self.trial_pool is None:
            allowed = "0 without trial_policy or trial_pool"
            raise SettingsError("trial_share", self.trial_share, allowed=allowed, source="together")

    @property
    def trial(self) -> dict[str, object]:
        """What is tried, as the gateway takes it."""
        return {name: getattr(self, name) for name in (*TRIAL, "prefix_length", "concurrency_threshold")}

    @property
    def pool_warning(self) -> str | None:
        """What a trial's pool of no worker, or of all of them, comes to, for the log; None if both arms have some."""
        if self.trial_pool is None:
            return None
        label = f"pool={self.trial_pool}"
        labelled = [label in worker.partition("#")[2].split("&") for worker in self.workers]
        if not any(labelled):
            who, arm, share = (
                f"no configured worker is in trial pool {self.trial_pool} (#{label})",
                "b",
                self.trial_share,
            )
        elif all(labelled):
            who, arm, share = f"every configured worker is in trial pool {self.trial_pool}", "a", 1 - self.trial_share
        else:
            return None
        return (
            f"{who}: arm {arm}'s share of the {self.trial_by}s, {share:g}, is served by the other arm's workers, "
            f"as errors of arm {arm}"
        )

    @property
    def files(self) -> dict[str, str]:
        """Those of `FILES` that are set."""
        return {name: path for name in FILES if (path := getattr(self, name)) is not None}

    @classmethod
    def implied(cls, values: Mapping[str, object]) -> set[str]:
        """Endpoints bring their own workers."""
        return {"workers"} if values.get("endpoints") else set()
