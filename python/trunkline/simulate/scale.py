"""The fleet changes its size under way: what prefixes, hit rate and times do when workers come and go.

The run is cut as in the policy study (section 7): a change at 35 % and one at 65 % of the arrivals' time; a fifth of
the time before each is held against the time after it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .runs import Job, run_all
from .spec import Compare, Options, Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .runs import Stopped
    from .spec import Found, Profile

# What random routing sustains on 7 workers, requests per second, and the parameters of the study's two chatbots.
CHATBOTS: dict[str, tuple[float, dict[str, Any]]] = {
    "chat": (49.96, {"tenants": 200, "skew": 1.0}),
    "header": (46.9, {"tenants": 400, "skew": 0.8, "header_tokens": 1024}),
}
LOAD = 0.9
REQUESTS = 5000
_FIRST, _SECOND, _WINDOW = 0.35, 0.65, 0.2
_SETTLE = 0.3


@dataclass(frozen=True, slots=True)
class Change:
    """What one change of size did, mean over the seeds."""

    workers_before: int
    workers_after: int
    prefixes: float
    """Prefixes that are known before and after."""
    changed: float
    """Share of them with another main worker."""
    forced: float
    """Share whose main worker left."""
    abandoned: float
    """Share that no longer uses its main worker, although that is there."""
    hit_rate_before: float
    hit_rate_after: float
    ttft_p99_before_s: float
    ttft_p99_after_s: float

    @property
    def hit_dip(self) -> float:
        """How much lower the hit rate is afterwards."""
        return self.hit_rate_before - self.hit_rate_after

    @property
    def p99_ratio(self) -> float:
        """P99 afterwards over P99 before."""
        return self.ttft_p99_after_s / self.ttft_p99_before_s


def spec(chatbot: str, policy: str, seed: int, sizes: tuple[int, int, int], profile: Profile | None = None) -> Spec:
    """Describe a run in which the fleet goes from the first of these sizes to the second and to the third."""
    capacity, parameters = CHATBOTS[chatbot]
    rate = capacity / 7 * sizes[0] * LOAD
    duration_s = REQUESTS / rate
    first_s, second_s, window_s = (share * duration_s for share in (_FIRST, _SECOND, _WINDOW))
    windows = [(first_s - window_s, first_s), (first_s, first_s + window_s)]
    windows += [(second_s - window_s, second_s), (second_s, second_s + window_s)]
    # Workers that came get their share only once requests ask for it.
    settled = (first_s + _SETTLE * window_s, first_s + (1 + _SETTLE) * window_s)
    return Spec(
        source={"chatbot": parameters | {"sessions": REQUESTS // 3, "sessions_per_s": rate / 3, "seed": seed}},
        policy=policy,
        profile=profile,
        options=Options(workers=sizes[0], scale=[(first_s, sizes[1]), (second_s, sizes[2])]),
        seed=seed,
        windows=windows,
        compare=[
            Compare(before=windows[0], after=settled, alive=sizes[1]),
            Compare(before=windows[2], after=windows[3], alive=sizes[2]),
        ],
    )


def changes(found: Sequence[Found], sizes: tuple[int, int, int]) -> list[Change]:
    """Sum up runs that differ in their seed only: one for each change."""
    out = []
    for at in (0, 1):
        before, after = ([one.windows[2 * at + side] for one in found] for side in (0, 1))
        moves = [one.moves[at] for one in found]
        prefixes = max(1, sum(move.prefixes for move in moves))
        out.append(
            Change(
                workers_before=sizes[at],
                workers_after=sizes[at + 1],
                prefixes=prefixes / len(found),
                changed=sum(move.changed for move in moves) / prefixes,
                forced=sum(move.forced for move in moves) / prefixes,
                abandoned=sum(move.abandoned for move in moves) / prefixes,
                hit_rate_before=statistics.fmean(window.hit_rate for window in before),
                hit_rate_after=statistics.fmean(window.hit_rate for window in after),
                ttft_p99_before_s=statistics.fmean(window.ttft_s.p99 for window in before),
                ttft_p99_after_s=statistics.fmean(window.ttft_s.p99 for window in after),
            )
        )
    return out


def run_scale(
    policies: Sequence[str],
    *,
    chatbots: Sequence[str] = tuple(CHATBOTS),
    sizes: tuple[int, int, int] = (4, 7, 5),
    seeds: Sequence[int] = (4, 5, 6),
    profile: Profile | None = None,
    stopped: Stopped | None = None,
) -> dict[tuple[str, str], list[Change]]:
    """Run all of these beside each other; return the changes by chatbot and policy, without those that were stopped."""
    keys = [(chatbot, policy) for chatbot in chatbots for policy in policies]
    jobs = [Job(spec(*key, seed, sizes, profile)) for key in keys for seed in seeds]
    found = run_all(jobs, label="scaling", stopped=stopped)
    out = {}
    for at, key in enumerate(keys):
        whole = [one for one in found[at * len(seeds) : (at + 1) * len(seeds)] if one and not one.report.unanswered]
        if len(whole) == len(seeds):
            out[key] = changes(whole, sizes)
    return out
