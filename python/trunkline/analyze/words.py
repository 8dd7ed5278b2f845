"""Advice in sentences: what differs, why it costs, what to do about it; how prompts and numbers are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spec import Advice, Kind

# What differs, and what to do.
_KINDS: dict[Kind, tuple[str, str]] = {
    "timestamp": ("a time", "put it behind the shared text (in the last message), or round it to the day"),
    "id": ("an id", "leave it out of the prompt, or put it behind the shared text"),
    "number": ("a number", "put it behind the shared text"),
    "name": ("a name", "put it behind the shared text, such as at the head of the user's message"),
    "tools_order": ("the order of the tools or of their keys", "write the tools in one order, with sorted keys"),
    "keys_order": ("the order of JSON keys", "write JSON with sorted keys"),
    "items_order": ("the order of the same pieces of text", "write them in one order"),
    "omitted": (
        "something that some of them leave out",
        "put what is optional behind the shared text; cut histories rarely and by much, not by a message each time",
    ),
    "text": ("text of the request's own", "put it behind the shared text"),
}


def headline(advice: Advice) -> str:
    """Return what was found in one sentence."""
    what, _ = _KINDS[advice.kind]
    of = f"{advice.templates} templates" if advice.templates > 1 else "one template"
    return (
        f"{what} parts {advice.requests} requests of {of} at token {advice.at_tokens}, before {advice.shared_tokens} "
        "tokens that they share"
    )


def remedy(advice: Advice) -> str:
    """Return what to do, and what it brings."""
    _, todo = _KINDS[advice.kind]
    return f"{todo}: saves up to {tokens(advice.saved_tokens)} tokens, {advice.share * 100:.1f} points of hit rate"


def quoted(text: str) -> str:
    """Return a prompt's text on one line, its control characters visible."""
    named = text.replace("\x1f", ": ").replace("\x1e", " | ")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in named)


def tokens(count: int) -> str:
    """Return a number of tokens, short."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return str(count)
