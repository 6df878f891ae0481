"""Notices a run that has left the road: a loss or gradient that is not finite, or a loss far above its past."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Any

from blackwell.spec import LossSpikeSpec

_MAD_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution in standard deviations
_MIN_SPREAD = 0.01  # nats; a loss that hardly moves must not make noise look like a spike


class LossWatch:
    """Robust spike detector over the last `window_steps` losses; spikes never enter the window."""

    def __init__(self, settings: LossSpikeSpec | None) -> None:
        self._settings = settings
        self._window: deque[float] = deque(maxlen=settings.window_steps if settings else 1)
        self._spikes = 0

    def see(self, loss: float) -> str | None:
        """Why the run counts as diverged after this finite loss; None where it does not."""
        if self._settings is None:
            return None
        if len(self._window) < self._window.maxlen:  # type: ignore[operator]
            self._window.append(loss)
            return None
        middle = median(self._window)
        spread = max(_MIN_SPREAD, _MAD_TO_SIGMA * median(abs(x - middle) for x in self._window))
        if loss <= middle + self._settings.threshold_sigma * spread:
            self._spikes = 0
            self._window.append(loss)
            return None
        self._spikes += 1
        if self._spikes < self._settings.patience_steps:
            return None
        return (
            f"loss {loss:.4f} for {self._spikes} steps in a row above {middle:.4f} + "
            f"{self._settings.threshold_sigma:g} x {spread:.4f}"
        )

    def state(self) -> dict[str, Any]:
        return {"window": list(self._window), "spikes": self._spikes}

    def load(self, state: dict[str, Any]) -> None:
        self._window.clear()
        self._window.extend(state.get("window", ()))
        self._spikes = int(state.get("spikes", 0))


def not_finite(loss: float, norm: float) -> str | None:
    """Why a step must not be taken; None where loss and gradient norm are finite."""
    for name, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            return f"{name} is {value}"
    return None
