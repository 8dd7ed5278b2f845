"""AWS's sixteen cells through the gateway, in small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trunkline.bench.aws16 import APIS, BARS, MODELS, Result
from trunkline.bench.aws16_live import LIVE_CONTEXTS, run_live, sessions_of

LONG = LIVE_CONTEXTS[0]


@pytest.mark.timeout(180)
def test_every_model_and_api_is_routed_by_prefix() -> None:
    small = replace(LONG, requests=150, clients=14, prefixes=20, prefix_tokens=2_000, kv_tokens=12_000)
    found = dict(run_live(quick=False, contexts=[small]))
    assert len(found) == len(MODELS) * len(APIS) * 2
    for (context, model, api, strategy), figures in found.items():
        if strategy == "kv_aware":
            random = found[context, model, api, "random"]
            assert figures.hit_rate > random.hit_rate + 0.15, found
            assert figures.ttft_p50_ms < random.ttft_p50_ms, found
    result = Result((1,), live=found)
    assert result.judged == sum(bar.context == "long" for bar in BARS)
    assert result.as_text().count("inference components") == 4


def test_equal_seeds_give_equal_sessions() -> None:
    assert sessions_of(LONG, 20, 1) == sessions_of(LONG, 20, 1) != sessions_of(LONG, 20, 2)
