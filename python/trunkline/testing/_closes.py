"""What can be used in a `with` block, at whose end it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closes(ABC):
    """A thing with `close`."""

    @abstractmethod
    def close(self) -> None:
        """End it. The second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()
