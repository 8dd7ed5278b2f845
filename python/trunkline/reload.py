"""Changed settings take effect while requests run, or not at all.

What the settings' files hold (certificates, keys, tokens), the workers, the policy and the trial are put in force;
anything else that differs needs a restart, and then nothing is changed. So does a certificate, key file or token that
is no longer named: a configuration file that is empty for a moment must not open the gateway. A refused reload leaves
everything as it was and says why.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ._core import TrunklineError
from .config import FILES, TRIAL, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._core import Gateway, Router
    from .config import ServeSettings

# Settings that make up the policy.
POLICY = ("policy", "prefix_length", "concurrency_threshold")

# Of a file: when it was changed, its size and identity. A mounted secret is replaced by another file of the same name.
_State: TypeAlias = tuple[int, int, int] | None


class Reloader:
    """What is in force, and whether there is something newer."""

    def __init__(
        self,
        gateway: Gateway,
        router: Router,
        settings: ServeSettings,
        *,
        again: Callable[[], ServeSettings],
        config_file: Path | None,
    ) -> None:
        """Watch for changes of `settings`, which `gateway` was started with; `again` reads them anew."""
        self._gateway, self._router, self._settings, self._again = gateway, router, settings, again
        self._config_file = config_file
        # Files that the settings name, those of the last refused ones included.
        self._files = set(settings.files.values())
        self._seen = self._states()

    def has_news(self) -> bool:
        """Whether a file has changed since the last reload, done or refused."""
        return self._states() != self._seen

    def reload(self) -> str:
        """Put what the files say now in force; return what happened, for the log."""
        self._seen = self._states()
        try:
            settings = self._again()
            self._watch(settings)
            self._refuse_what_needs_a_restart(settings)
        except Exception as refused:  # nothing that a file says may end a gateway that serves
            self._gateway.reload_refused()
            kind = (
                "" if isinstance(refused, TrunklineError | SettingsError | OSError) else f"{type(refused).__name__}: "
            )
            return f"reload refused, nothing has changed: {kind}{refused}"
        # Figures of arms under different policies do not mix, but for what is decided before the policy is set below.
        trial = settings.trial if self._differs(settings, *TRIAL, *POLICY) else None
        try:
            added, removed = self._gateway.reload(workers=settings.workers, files=settings.files, trial=trial)
        except TrunklineError as refused:
            return f"reload refused, nothing has changed: {refused}"
        if self._differs(settings, *POLICY):
            self._router.set_policy(
                settings.policy,
                prefix_length=settings.prefix_length,
                concurrency_threshold=settings.concurrency_threshold,
            )
        self._settings = settings
        self._files = set(settings.files.values())
        self._seen = self._states()
        done = f"reloaded: {_list('added', added)}, {_list('removed', removed)}"
        return f"{done}; {settings.pool_warning}" if settings.pool_warning else done

    def _differs(self, settings: ServeSettings, *names: str) -> bool:
        return any(getattr(settings, name) != getattr(self._settings, name) for name in names)

    def _refuse_what_needs_a_restart(self, settings: ServeSettings) -> None:
        for field in type(settings).fields():
            value = getattr(settings, field.name)
            before = getattr(self._settings, field.name)
            is_off = field.name in FILES and value is None
            if value != before and (is_off or field.name not in ("workers", *POLICY, *TRIAL, *FILES)):
                raise SettingsError(field.name, value, allowed=f"{before!r} until a restart", source="reload")

    def _watch(self, settings: ServeSettings) -> None:
        """Look at the files of settings that may be refused, too: one of them may only be missing yet."""
        self._files |= set(settings.files.values())
        self._seen = self._states()

    def _states(self) -> dict[str, _State]:
        paths = [Path(path) for path in sorted(self._files)]
        if self._config_file is not None:
            paths.append(self._config_file)
        return {str(path): _state(path) for path in paths}


def _state(path: Path) -> _State:
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: it can be no file's name
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _list(what: str, workers: list[str]) -> str:
    return f"{what} {' '.join(workers)}" if workers else f"no worker {what}"
