"""The settings of `trunkline mock-worker`. The simulator names their defaults."""

# Annotations are what this module is made of, and are read while it runs: they are not put off.
from typing import Annotated, Literal

from msgspec import Meta

from trunkline._core import MockWorker

from .kinds import Host, Port
from .settings import Settings

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
    kv_events: Annotated[bool, Meta(description="Publish KV events as vLLM does; a token is then a byte.")] = _MODELLED[
        "kv_events"
    ]
    events_port: Annotated[Port, Meta(description="Port of the KV events; 0 takes a free one.")] = _MODELLED[
        "events_port"
    ]
    replay_port: Annotated[Port, Meta(description="Port of their replay; 0 takes a free one.")] = _MODELLED[
        "replay_port"
    ]
    buffer_steps: Annotated[int, Meta(ge=1, le=1_000_000, description="Messages that a replay can give.")] = _MODELLED[
        "buffer_steps"
    ]
    event_delay_s: Annotated[float, Meta(ge=0, le=3600, description="KV events go out so much later.")] = _MODELLED[
        "event_delay_s"
    ]
