"""The settings of `trunkline sidecar`."""

# Annotations are what this module is made of, and are read while it runs: they are not put off.
from typing import Annotated

from msgspec import Meta

from .kinds import File, PolicyName, Size
from .settings import Settings


class SidecarSettings(Settings, frozen=True, kw_only=True):
    """Settings of `trunkline sidecar`. Workers may also be added by clients."""

    socket: Annotated[File, Meta(description="Unix socket to listen on, for processes of this user.")] = (
        "trunkline.sock"
    )
    workers: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="Name of a worker, usually its URL; again for each.", extra={"metavar": "URL"}),
    ] = ()
    policy: Annotated[PolicyName, Meta(description="How workers are chosen.")] = "kv_aware"
    memory_budget: Annotated[Size, Meta(description="Bytes that the prefix index may own.")] = "256MiB"
    replicas: Annotated[
        int, Meta(ge=1, le=1000, description="Routers in front of the same workers, this included.")
    ] = 1
    max_connections: Annotated[
        int, Meta(ge=1, le=65536, description="Most connections; each client thread has one.")
    ] = 1024
    frame_timeout_s: Annotated[
        float, Meta(ge=0.001, le=3600, description="Longest time for a question to arrive or an answer to be taken.")
    ] = 5.0
    grace_s: Annotated[
        float, Meta(ge=0.001, le=3600, description="How long bookings of a client that is gone are kept.")
    ] = 5.0
