"""Trunkline as the routing strategy of LiteLLM's proxy: it chooses among the healthy deployments of a model.

LiteLLM asks once per attempt and tells when it has ended. Deployments, cooldowns, retries and keys stay its own.

pip install trunkline 'litellm[proxy]' && cd examples/litellm && litellm --config config.yaml
With several processes (`--num_workers 4`) set TRUNKLINE_EXAMPLE_SOCKET to the socket of a `trunkline sidecar`.
"""

import contextlib
import os
from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from litellm.types.router import CustomRoutingStrategyBase

from trunkline import Decision, DuplicateWorkerError, Router, SidecarRouter

SOCKET = os.environ.get("TRUNKLINE_EXAMPLE_SOCKET")
TRIED = f"trunkline_tried_{os.urandom(8).hex()}"  # clients send metadata of their own


class PrefixAware(CustomLogger, CustomRoutingStrategyBase):  # type: ignore[misc] # LiteLLM is not installed for checks
    """The callback that `config.yaml` names, and the strategy that it sets."""

    def __init__(self) -> None:
        super().__init__()
        self.router = SidecarRouter(SOCKET) if SOCKET else Router()
        self.booked: dict[str, Decision] = {}  # by LiteLLM's id of the call
        self.proxy: Any = None  # its litellm.Router

    async def async_pre_call_hook(self, **_: object) -> None:
        """Take over at the first request: the proxy makes its router after it has loaded its callbacks."""
        from litellm.proxy.proxy_server import llm_router  # noqa: PLC0415 (not there earlier)

        if llm_router is not self.proxy:
            llm_router.set_custom_routing_strategy(self)
            self.proxy = llm_router

    async def async_get_available_deployment(
        self,
        model: str,
        request_kwargs: dict[str, Any],
        messages: list[dict[str, Any]] | None = None,
        input: object = None,  # noqa: A002 (LiteLLM's name)
        specific_deployment: object = False,  # noqa: FBT002 (likewise)
    ) -> dict[str, Any]:
        """Choose a deployment and book the attempt on it."""
        choice = (model, request_kwargs, messages, input, specific_deployment)
        found = await self.proxy.async_get_healthy_deployments(*choice)
        if isinstance(found, dict):  # one that the client named
            return found
        deployments: dict[str, dict[str, Any]] = {each["model_info"]["id"]: each for each in found}
        for name in deployments:
            with contextlib.suppress(DuplicateWorkerError):
                self.router.add_worker(name)
        said = (f"{message.get('role')}\n{message.get('content')}" for message in messages or ())
        text = "\n".join(said) or str(input)
        tried = request_kwargs.setdefault("metadata", {}).setdefault(TRIED, [])
        fresh = [name for name in deployments if name not in tried] or list(deployments)
        self._release(request_kwargs)  # the attempt before this one
        decision = self.router.route(text, model=model, eligible=fresh)
        tried.append(decision.worker)
        self.booked[request_kwargs["litellm_call_id"]] = decision
        return deployments[decision.worker]

    async def async_log_success_event(self, kwargs: dict[str, Any], **_: object) -> None:
        """Release what was booked: the answer is whole, its client has left, or it failed."""
        self._release(kwargs)

    async_log_failure_event = async_log_success_event

    def _release(self, call: dict[str, Any]) -> None:
        if decision := self.booked.pop(call["litellm_call_id"], None):
            self.router.complete(decision)


handler = PrefixAware()
