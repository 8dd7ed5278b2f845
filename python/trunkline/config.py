"""Typed settings: one table per command, from which flags, environment and file are all read.

A field of a settings class is everything that is known about a setting: its name, type, range, default and meaning. The
command line takes it as ``--memory-budget``, the environment as ``TRUNKLINE_MEMORY_BUDGET``, a file as
``memory_budget``. The first of these that has a value wins, in that order. A key that is not in the table, or a value
outside its range, stops the start: see `SettingsError`.
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from ._core import MockWorker

if typing.TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENVIRONMENT_PREFIX = "TRUNKLINE_"
CONFIG_VARIABLE = "TRUNKLINE_CONFIG"

Port = Annotated[int, Meta(ge=0, le=65535)]
Host = Annotated[str, Meta(min_length=1, extra={"metavar": "HOST"})]
Url = Annotated[
    str,
    Meta(
        pattern=r"^(?i:https?://[^/?#\s@]+(/[^?#\s]*)?|unix:/[^?#\s]+)(#engine=(vllm|sglang|trtllm|tgi))?$",
        extra={
            "allowed": "a URL, http[s]://host[:port][/prefix] or unix:/path[:/prefix] [#engine=vllm|sglang|trtllm|tgi]",
            "metavar": "URL",
        },
    ),
]
ListenAt = Annotated[
    str,
    Meta(
        pattern=r"^(unix:/\S+|\[[0-9a-fA-F:.]+\]:\d{1,5}|[^\s:/\[\]]+:\d{1,5})$",
        extra={"allowed": "unix:/path, host:port or [IPv6 address]:port", "metavar": "WHERE"},
    ),
]
File = Annotated[str, Meta(min_length=1, extra={"allowed": "a file's path", "metavar": "FILE"})]
WorkerCap = Annotated[
    str,
    Meta(
        pattern=r"^(?i:https?://[^/?#\s@]+(/[^?#\s=]*)?|unix:/[^?#\s=]+)=[0-9]{1,7}$",
        extra={"allowed": "a worker and a number, URL=N", "metavar": "URL=N"},
    ),
]
Size = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]+ ?(?i:[kmg]i?b?|b)?$",
        extra={"allowed": "a size like 256MiB (B, kB, MB, GB, KiB, MiB, GiB)", "metavar": "SIZE"},
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        extra={"allowed": "1 to 63 letters, digits and hyphens, a letter or digit first", "metavar": "NAME"},
    ),
]
PolicyName = Annotated[
    Literal["kv_aware", "prefix_aware", "least_outstanding", "round_robin", "random"], Meta(extra={"metavar": "NAME"})
]


ProtocolName = Annotated[Literal["http1", "h2"], Meta(extra={"metavar": "NAME"})]

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


class SettingsError(Exception):
    """A setting cannot be used. Its data are attributes: key, value, allowed, and the source the value came from."""

    def __init__(self, key: str, value: object, *, allowed: str, source: str) -> None:
        """Keep the data and phrase them."""
        super().__init__(f"{key} = {value!r} ({source}): allowed is {allowed}")
        self.key, self.value, self.allowed, self.source = key, value, allowed, source


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, as the command line and the error messages need it."""

    name: str
    type: Any
    default: Any

    @property
    def flag(self) -> str:
        """Its name on the command line; of a list, that of one item."""
        name = self.name.removesuffix("s") if self.is_list else self.name
        return "--" + name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands for its value in help."""
        return _metavar(msgspec.inspect.type_info(self.type))

    @property
    def help(self) -> str:
        """What it means, and its default."""
        text = next(meta.description for meta in reversed(self.type.__metadata__) if meta.description)
        shown = {None: "unset", (): "none"}.get(self.default, self.default)
        return f"{text} [default: {shown}]"

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return isinstance(self.default, tuple)

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return isinstance(self.default, bool)

    @property
    def is_table(self) -> bool:
        """Whether its items are tables, which only a file can hold."""
        info = msgspec.inspect.type_info(self.type)
        kinds = msgspec.inspect
        while isinstance(info, kinds.Metadata):
            info = info.type
        return isinstance(info, kinds.VarTupleType) and isinstance(info.item_type, kinds.StructType)

    @property
    def allowed(self) -> str:
        """Its range, in words."""
        return _describe(msgspec.inspect.type_info(self.type))

    def parse(self, value: object, *, source: str) -> object:
        """Return the value in its type; text is read as a number or a switch where one is wanted."""
        if self.is_list and isinstance(value, str):
            value = [part for part in re.split(r"[,\s]+", value) if part]
        try:
            return msgspec.convert(value, self.type, strict=False)
        except msgspec.ValidationError as refused:
            allowed = f"{self.allowed}; {refused}" if self.is_table else self.allowed
            raise SettingsError(self.name, value, allowed=allowed, source=source) from refused


def config_file(given: Path | None, *, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file with settings: the one that is given, else the one that TRUNKLINE_CONFIG names, if any."""
    if given is None and CONFIG_VARIABLE in environment:
        return Path(environment[CONFIG_VARIABLE])
    return given


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the settings of one command."""

    @classmethod
    def fields(cls) -> Iterator[Field]:
        """All settings of this command, in the order of the class."""
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            yield Field(name=field.name, type=hints[field.name], default=field.default)

    @classmethod
    def implied(cls, values: Mapping[str, object]) -> set[str]:
        """Keys that need no value because of these values."""
        del values
        return set()

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, object],
        environment: Mapping[str, str] = os.environ,
        file: Path | None = None,
    ) -> tuple[Self, dict[str, str]]:
        """Read every source; return the settings and, for each key, where its value came from.

        flags: keys and values of the command line, those given only.  file: TOML or YAML; without it, the one that
        TRUNKLINE_CONFIG names.  Raises SettingsError for the first unknown key or unfit value.
        """
        file = config_file(file, environment=environment)
        fields = {field.name: field for field in cls.fields()}
        values: dict[str, Any] = {}
        sources = dict.fromkeys(fields, "default")
        for source, found in (
            (str(file), _read_file(file) if file else {}),
            ("environment", _read_environment(environment)),
            ("command line", flags),
        ):
            for key, value in found.items():
                if key not in fields:
                    raise SettingsError(key, value, allowed=f"one of the keys {', '.join(fields)}", source=source)
                values[key] = fields[key].parse(value, source=source)
                sources[key] = source
        for key in fields.keys() - values.keys() - cls.implied(values):
            fields[key].parse(fields[key].default, source="default")
        return cls(**values), sources


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
    replicas: Annotated[
        int, Meta(ge=1, le=1000, description="Gateways in front of the same workers, this one included.")
    ] = 1
    prefix_length: Annotated[
        int, Meta(ge=1024, le=65536, description="Characters of a prompt that prefix_aware hashes.")
    ] = 4096
    concurrency_threshold: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Requests in flight at which prefix_aware leaves a worker; unset is 1.5 x the mean."),
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

    @property
    def files(self) -> dict[str, str]:
        """Those of `FILES` that are set."""
        return {name: path for name in FILES if (path := getattr(self, name)) is not None}

    @classmethod
    def implied(cls, values: Mapping[str, object]) -> set[str]:
        """Endpoints bring their own workers."""
        return {"workers"} if values.get("endpoints") else set()


_MODELLED = MockWorker.DEFAULTS


class MockWorkerSettings(Settings, frozen=True, kw_only=True):
    """Settings of `trunkline mock-worker`. The defaults model one worker of 8 GPUs."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port to listen on; 0 takes a free one.")] = 8000
    model: Annotated[str, Meta(min_length=1, description="The one model that is served.")] = _MODELLED["model"]
    dialect: Annotated[
        Literal["vllm", "sglang", "trtllm", "tgi"],
        Meta(description="The engine that it speaks like.", extra={"metavar": "NAME"}),
    ] = _MODELLED["dialect"]
    block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per block of the prefix cache.")] = _MODELLED[
        "block_size"
    ]
    kv_tokens: Annotated[int, Meta(ge=8, le=2**31, description="Tokens that fit the KV cache.")] = _MODELLED[
        "kv_tokens"
    ]
    prefill_tokens_per_s: Annotated[float, Meta(gt=0, description="Uncached prompt tokens computed per second.")] = (
        _MODELLED["prefill_tokens_per_s"]
    )
    step_s: Annotated[float, Meta(gt=0, description="Time of a decode step of one sequence.")] = _MODELLED["step_s"]
    per_sequence_s: Annotated[float, Meta(ge=0, description="Added to a step per decoding sequence.")] = _MODELLED[
        "per_sequence_s"
    ]
    per_kv_token_s: Annotated[float, Meta(ge=0, description="Added to a step per token of context.")] = _MODELLED[
        "per_kv_token_s"
    ]
    max_sequences: Annotated[int, Meta(ge=1, le=65536, description="Sequences that run at once.")] = _MODELLED[
        "max_sequences"
    ]
    step_token_budget: Annotated[int, Meta(ge=2, description="Tokens computed per step.")] = _MODELLED[
        "step_token_budget"
    ]
    default_output_tokens: Annotated[int, Meta(ge=1, description="Length of an answer without a limit.")] = _MODELLED[
        "default_output_tokens"
    ]
    time_scale: Annotated[float, Meta(ge=1e-6, le=1e3, description="Multiplies all times; 0.1 is 10 x faster.")] = (
        _MODELLED["time_scale"]
    )


def _describe(info: msgspec.inspect.Type) -> str:
    """Say in words what values a type allows."""
    kinds = msgspec.inspect
    match info:
        case kinds.Metadata(type=inner, extra=extra):
            text = str((extra or {}).get("allowed") or _describe(inner))
        case kinds.LiteralType(values=values):
            text = "one of " + ", ".join(map(str, values))
        case kinds.UnionType(types=types):
            text = " or ".join(map(_describe, types))
        case kinds.VarTupleType(item_type=item):
            text = "one or more of: " + _describe(item)
        case kinds.IntType():
            text = "a whole number" + _range(info)
        case kinds.FloatType():
            text = "a number" + _range(info)
        case kinds.BoolType():
            text = "true or false"
        case kinds.NoneType():
            text = "null"
        case kinds.StructType():
            text = f"a table with the keys {', '.join(field.name for field in info.fields)}"
        case _:
            text = "a text that is not empty"
    return text


def _metavar(info: msgspec.inspect.Type) -> str:
    """Say in one word what is wanted."""
    kinds = msgspec.inspect
    match info:
        case kinds.Metadata(type=inner, extra=extra):
            word = str((extra or {}).get("metavar") or _metavar(inner))
        case kinds.UnionType(types=types):
            word = _metavar(types[0])
        case kinds.VarTupleType(item_type=item):
            word = _metavar(item)
        case kinds.IntType() | kinds.FloatType():
            word = "N"
        case _:
            word = "TEXT"
    return word


def _range(info: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    bounds = (("from", info.ge), ("above", info.gt), ("to", info.le))
    return "".join(f" {word} {bound}" for word, bound in bounds if bound is not None)


def _read_file(path: Path) -> dict[str, object]:
    """Read a TOML or YAML file of top-level keys."""
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("config", source, allowed=f"a readable file ({error})", source="file") from error
    match path.suffix.lower():
        case ".toml":
            found = _read_toml(text, source=source)
        case ".yaml" | ".yml":
            found = _read_yaml(text, source=source)
        case other:
            raise SettingsError("config", source, allowed="a file that ends in .toml, .yaml or .yml", source=other)
    if not isinstance(found, dict):
        raise SettingsError("config", source, allowed="a table of keys and values", source="file")
    return {str(key): value for key, value in found.items()}


def _read_toml(text: str, *, source: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError("config", source, allowed=f"valid TOML ({error})", source="file") from error


def _read_yaml(text: str, *, source: str) -> object:
    import yaml  # noqa: PLC0415 (20 ms that only users of YAML pay)

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SettingsError("config", source, allowed=f"valid YAML ({error})", source="file") from error


# What Kubernetes puts into every container beside a Service named `trunkline`: TRUNKLINE_PORT=tcp://10.0.0.1:8080, ...
_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")


def _read_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in environment.items():
        key = name.removeprefix(ENVIRONMENT_PREFIX)
        if name in (key, CONFIG_VARIABLE) or _SERVICE_LINK.fullmatch(key):
            continue
        if key.endswith("PORT") and re.match(r"(tcp|udp|sctp)://", value):
            continue
        found[key.lower()] = value
    return found
