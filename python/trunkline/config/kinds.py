"""What values look like: the types that several settings have, with their ranges and the words for them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Host = Annotated[str, Meta(min_length=1, extra={"metavar": "HOST"})]
Url = Annotated[
    str,
    Meta(
        pattern=r"^(?i:https?://[^/?#\s@]+(/[^?#\s]*)?|unix:/[^?#\s]+)(#(engine=(vllm|sglang|trtllm|tgi)|rank=\d{1,4}|(events|replay)=(tcp|ipc)://[^\s&]+|pool=[A-Za-z0-9][A-Za-z0-9-]{0,62})"
        r"(&(engine=(vllm|sglang|trtllm|tgi)|rank=\d{1,4}|(events|replay)=(tcp|ipc)://[^\s&]+|pool=[A-Za-z0-9][A-Za-z0-9-]{0,62}))*)?$",
        extra={
            "allowed": "a URL, http[s]://host[:port][/prefix] or unix:/path[:/prefix] "
            "[#engine=vllm|sglang|trtllm|tgi][&rank=N][&events=tcp://host:port][&replay=tcp://host:port][&pool=NAME]",
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
TokenizerAt = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)([^=\s]+=)?[^=]+$",
        extra={"allowed": "a directory, for one model with its name before it: [MODEL=]DIR", "metavar": "[MODEL=]DIR"},
    ),
]
EventsName = Annotated[Literal["auto", "on", "off"], Meta(extra={"metavar": "WHEN"})]
TrialByName = Annotated[Literal["tenant", "request"], Meta(extra={"metavar": "WHAT"})]
ContentFormatName = Annotated[Literal["auto", "string", "openai"], Meta(extra={"metavar": "FORMAT"})]
ProtocolName = Annotated[Literal["http1", "h2"], Meta(extra={"metavar": "NAME"})]
