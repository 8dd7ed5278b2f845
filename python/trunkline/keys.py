"""Makes API keys: a token for the client, shown once, and the line with its hash for the gateway's file."""

from __future__ import annotations

import hashlib
import secrets

# 256 bits: nobody guesses it, so its plain SHA-256 gives nothing away.
_TOKEN_BYTES = 32


def new_key(
    *,
    name: str,
    tenant: str | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> tuple[str, str]:
    """Return a new token and the line that admits it.

    name: as metrics call it.  tenant: whose prefixes it shares; its own name unless given.  The limits are per minute,
    None for none.
    """
    token = "tk-" + secrets.token_urlsafe(_TOKEN_BYTES)
    words = {
        "name": name,
        "sha256": hashlib.sha256(token.encode()).hexdigest(),
        "tenant": tenant,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    return token, " ".join(f"{word}={value}" for word, value in words.items() if value is not None)
