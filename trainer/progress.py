"""Where a run stands: the few numbers beside model and optimizer that a checkpoint must hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Progress:
    """State of the training loop after `step` optimizer steps."""

    step: int = 0
    position: int = 0
    """Sequences consumed by all ranks: the whole state of the data."""
    tokens: int = 0
    """Training tokens consumed since step 0."""
    skips: list[int] = field(default_factory=list)
    """Steps before which data was left out after a divergence (BLACKWELL_SKIP_DATA), each once."""

    def advance(self, sequences: int, tokens: int) -> None:
        self.step += 1
        self.position += sequences
        self.tokens += tokens

    def skip(self, before_step: int, sequences: int) -> bool:
        """Leaves out the next `sequences`, unless this was done already; True where it was done now."""
        if before_step in self.skips:
            return False
        self.position += sequences
        self.skips.append(before_step)
        return True

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "position": self.position, "tokens": self.tokens, "skips": list(self.skips)}

    def load(self, state: dict[str, Any]) -> None:
        self.step, self.position, self.tokens = state["step"], state["position"], state["tokens"]
        self.skips = list(state.get("skips", ()))
