"""The demo's traffic: a multi-tenant chatbot, made from a seed.

Every tenant has a long system prompt of its own, shared by all its users; a user asks short questions, some in several
turns whose history grows with the answers; some tenants write Japanese. A tenant's requests come close together, then
it is done: a prompt is used a handful of times, which is what makes its placement matter (see `expected_hit_rate`).
Sessions arrive by a Poisson process, whether or not the fleet keeps up.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

# The mock worker cuts text into tokens of 4 bytes, Japanese into one token per character.
BYTES_PER_TOKEN = 4

_ENGLISH = (  # noqa: SIM905 (a list would take a line per word)
    "account address agent answer apply before billing cancel change charge check claim client confirm contact credit "
    "customer date deliver deposit device email expire factory fee follow form guarantee history insurance invoice "
    "item late letter limit line message method missing model notice number offer order owner parcel part payment "
    "period phone policy price product proof receipt refund region renew repair replace report request return review "
    "security service ship status stock store support system term ticket transfer update urgent user value verify"
).split()
_JAPANESE = (  # noqa: SIM905
    "お客様 ご注文 返品 交換 配送 請求書 支払い 手数料 保証 期限 契約 解約 更新 住所 電話番号 確認 対応 案内 製品 "
    "修理 部品 在庫 店舗 担当者 受付 問い合わせ 領収書 割引 会員 登録 変更 規約 安全 返金 送料 発送 到着 遅延 説明"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What to make. Lengths are in tokens of the mock worker."""

    seed: int
    requests: int
    """At least so many: all of a tenant's are made."""
    rate_rps: float
    """Requests per second, on average."""
    uses_per_prompt: tuple[int, int] = (5, 6)
    """Fewest and most requests of one tenant."""
    system_tokens: int = 3000
    question_tokens: tuple[int, int] = (12, 40)
    answer_tokens: tuple[int, int] = (8, 32)
    turn_weights: tuple[float, ...] = (0.6, 0.2, 0.2)
    """How often a session has one turn, two, three, ..."""
    think_s: float = 0.5
    """Mean time between an answer and the next question."""
    active_tenants: float = 12.0
    """Tenants whose sessions overlap."""
    japanese_share: float = 0.2


@dataclass(frozen=True, slots=True)
class Turn:
    """One question of a user, and how long its answer will be."""

    question: str
    max_tokens: int
    think_s: float
    """Time since the answer before; 0 for the first turn."""


@dataclass(frozen=True, slots=True)
class Session:
    """One user's conversation with one tenant's assistant."""

    start_s: float
    tenant: int
    system: str
    escaped: bool
    """Whether the client writes non-ASCII as ``\\uXXXX``, as many do: it is the same prompt."""
    turns: tuple[Turn, ...] = field(repr=False)


def make_workload(spec: WorkloadSpec) -> list[Session]:
    """Return the sessions in order of their start. Equal specs give equal sessions."""
    rng = random.Random(spec.seed)  # noqa: S311 (traffic, not secrets)
    uses: list[int] = []
    while sum(uses) < spec.requests:
        uses.append(rng.randint(*spec.uses_per_prompt))
    systems = [_system_prompt(spec, tenant, rng) for tenant in range(len(uses))]
    # A tenant's sessions are spread around its place in the order, so that only some tenants are active at once.
    order = [
        (tenant + rng.random() * spec.active_tenants, tenant, turns)
        for tenant in range(len(uses))
        for turns in _split_into_sessions(spec, uses[tenant], rng)
    ]
    order.sort()
    sessions_per_s = spec.rate_rps * len(order) / sum(uses)
    start_s = 0.0
    sessions = []
    for _, tenant, turns in order:
        start_s += rng.expovariate(sessions_per_s)
        japanese = _is_japanese(systems[tenant])
        sessions.append(
            Session(
                start_s=start_s,
                tenant=tenant,
                system=systems[tenant],
                escaped=japanese and rng.random() < 0.5,  # noqa: PLR2004 (a fair coin)
                turns=tuple(_turn(spec, index, rng, japanese=japanese) for index in range(turns)),
            )
        )
    return sessions


def count_requests(sessions: list[Session]) -> int:
    """Return the number of requests that sessions make."""
    return sum(len(session.turns) for session in sessions)


def expected_hit_rate(spec: WorkloadSpec, *, workers: int) -> float:
    """Return the share of requests that find their system prompt cached under random placement; 1 worker: perfect."""
    uses = sum(spec.uses_per_prompt) / 2
    return 1 - workers / uses * (1 - math.pow(1 - 1 / workers, uses))


def _split_into_sessions(spec: WorkloadSpec, left: int, rng: random.Random) -> list[int]:
    """Split a tenant's requests into sessions; return the turns of each."""
    sessions = []
    while left > 0:
        (turns,) = rng.choices(range(1, len(spec.turn_weights) + 1), spec.turn_weights)
        sessions.append(min(turns, left))
        left -= sessions[-1]
    return sessions


def _system_prompt(spec: WorkloadSpec, tenant: int, rng: random.Random) -> str:
    if rng.random() < spec.japanese_share:
        return _japanese(f"あなたは第{tenant}号店の窓口です。", spec.system_tokens, rng)
    return _english(f"You are the assistant of shop {tenant}.", spec.system_tokens, rng)


def _turn(spec: WorkloadSpec, index: int, rng: random.Random, *, japanese: bool) -> Turn:
    tokens = rng.randint(*spec.question_tokens)
    case = f"{rng.randrange(10**8):08d}"
    question = _japanese(f"番号{case}:", tokens, rng) if japanese else _english(f"Case {case}:", tokens, rng)
    think_s = rng.expovariate(1 / spec.think_s) if index else 0.0
    return Turn(question=question, max_tokens=rng.randint(*spec.answer_tokens), think_s=think_s)


def _english(start: str, tokens: int, rng: random.Random) -> str:
    length = tokens * BYTES_PER_TOKEN
    # No word is shorter than three letters, so these are enough.
    words = rng.choices(_ENGLISH, k=length // BYTES_PER_TOKEN)
    return " ".join([start, *words])[:length]


def _japanese(start: str, tokens: int, rng: random.Random) -> str:
    return (start + "、".join(rng.choices(_JAPANESE, k=tokens)))[:tokens]


def _is_japanese(text: str) -> bool:
    return not text[0].isascii()
