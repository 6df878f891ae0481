"""Everything that one worker's training loop holds, and what the loop does with it between two steps."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from blackwell.telemetry import StepRecord
from blackwell.verdict import Verdict
from trainer.checkpoint import CheckpointStore
from trainer.data import BatchSource
from trainer.evaluate import validation_loss
from trainer.faults import Faults
from trainer.feed import Feed, StepData
from trainer.log import Log
from trainer.meter import Meter
from trainer.model.transformer import LayerStack
from trainer.optim import LossScale
from trainer.precision import Hardware
from trainer.profiling import ProfileWindow
from trainer.progress import Progress
from trainer.settings import Job
from trainer.signals import StopFlag
from trainer.state import optimizer_step, snapshot
from trainer.status import StatusFile
from trainer.step import Outcome, Votes, exchange
from trainer.watch.capacity import SHORT_INTERVAL_SECONDS, PlanEnd
from trainer.watch.control import Action, ControlFile
from trainer.watch.divergence import LossWatch, not_finite
from trainer.watch.hang import Watchdog, dump_stacks
from trainer.watch.memory import peaks, reset_peaks

FLUSH_AFTER_SIGNAL_SECONDS = 85.0
"""After a signal: how long, from it, the checkpoint may take to become durable before the worker ends anyway."""
FLUSH_AT_END_SECONDS = 3_600.0


@dataclass(slots=True)
class Session:
    """One worker's job. Every method that says `collective` must be called by all ranks."""

    job: Job
    rank: int
    hardware: Hardware
    backend: str
    model: LayerStack
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    store: CheckpointStore
    feed: Feed
    validation: BatchSource | None
    log: Log
    status: StatusFile
    stop: StopFlag
    watchdog: Watchdog
    faults: Faults
    progress: Progress
    scale: LossScale
    losses: LossWatch
    control: ControlFile | None
    plan: PlanEnd
    meter: Meter
    profile: ProfileWindow
    fingerprint: dict[str, Any]
    """What a data position means; kept in the checkpoint."""
    saved_step: int = -1
    stop_after: int | None = None
    """Last step to take, from the control file."""
    cause: str = ""
    failed_step: int | None = None
    """The step that was not taken because the run diverged in it."""
    last_loss: float | None = None
    _stall: float = 0.0
    _step_seconds: float = 0.0
    _plan_seen: bool = False
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def stop_reason(self) -> str:
        return self.stop.reason or "another rank was told to stop"

    def close(self) -> None:
        """Ends threads; a failing last save still raises."""
        self.feed.close()
        if self.control is not None:
            self.control.close()
        self.store.close()
        self.watchdog.close()

    # ------------------------------------------------------------------ around a step

    def next_data(self) -> StepData:
        """The next step's input. Told to stop while waiting, it comes back empty: the vote then ends the run."""
        self.watchdog.beat("data", slow=self.meter.steps == 0)
        if self.faults:
            self.faults.pause("slow_data", self.progress.step + 1, self.stop)
        return self.feed.next(self.stop) or StepData((), 0)

    def agree_to_stop(self) -> bool:
        """Collective. True when any rank was told to stop."""
        nothing = torch.zeros((), dtype=torch.float64, device=self.hardware.device)
        return exchange(nothing, 0, Votes(stop=self.stop()), None, 1.0).stop

    def begin_step(self, step: int) -> None:
        self.watchdog.beat("step", slow=self.meter.steps == 0)  # the first one compiles and tunes
        self.status.phase, self.status.at_step = "step", step
        self.profile.before_step(step)
        if self.faults:
            self.faults.before_step(step, self.job.micro_batch_size)

    def loss_factor(self) -> float:
        """What a rank's loss sum is multiplied by before backward: the loss scale over its tokens of one step."""
        return self.scale.value / (self.job.tokens_per_step / self.job.world_size)

    def votes(self) -> Votes:
        """This rank's part of the exchange. Times are rank 0's: all ranks act on one clock."""
        if self.rank:
            return Votes(stop=self.stop())
        near = self._plan_seen and time.monotonic() - self._saved_at > SHORT_INTERVAL_SECONDS
        request = self.control.take() if self.control else None
        ends = not self._plan_seen and self.plan.reached(self.store.seconds_to_safety + self._step_seconds)
        return Votes(stop=self.stop(), plan_end=ends, save=near, request=request)

    def why_diverged(self, outcome: Outcome) -> str | None:
        """Why the optimizer must not step; None where it may. Alike on all ranks."""
        why = not_finite(outcome.loss, outcome.norm)
        if why is None:
            return self.losses.see(outcome.loss)
        return None if self.scale.enabled and not self.scale.exhausted else why

    def end_step(self, outcome: Outcome, rate: float) -> None:
        """Counts the step just taken and logs it where it is due."""
        job, progress = self.job, self.progress
        position = progress.position
        progress.advance(job.global_batch_size, job.tokens_per_step)
        self.last_loss = outcome.loss
        self.status.write(step=progress.step)
        stall, self._stall = self._stall, 0.0
        seconds = self.meter.step(job.tokens_per_step, self.feed.take_wait_seconds(), stall)
        self._step_seconds = seconds
        if (summary := self.profile.after_step(progress.step, job.steps)) is not None:
            self.log.event("profile", **summary)
        if self.rank or progress.step % job.training.log_interval_steps:
            return
        interval, speed = self.meter.take()
        self.log.step(
            StepRecord(
                step=progress.step,
                time=time.time(),
                loss=outcome.loss,
                learning_rate=rate,
                grad_norm=outcome.norm,
                tokens=progress.tokens,
                step_seconds=seconds,
                data_wait_seconds=interval.data_wait,
                checkpoint_stall_seconds=interval.checkpoint_stall,
                checkpoint_durable_lag_seconds=self.store.durable_lag_seconds,
                data_order_hash=self.feed.order_hash(position),
                world_size=job.world_size,
                micro_batch_size=job.micro_batch_size,
                attempt=job.attempt,
                restart=job.restart,
                **speed,
                **peaks(self.hardware.device),
            )
        )
        reset_peaks(self.hardware.device)

    # ------------------------------------------------------------------ what may follow a step

    def obey(self, outcome: Outcome) -> bool:
        """Collective. Does what the control file asked for; True when the run shall stop now."""
        step = self.progress.step
        match outcome.action:
            case Action.CHECKPOINT_NOW:
                self.save()
            case Action.STOP_AFTER_STEP:
                self.stop_after = max(step, outcome.action_step)
            case Action.PROFILE:
                self.profile.request(step + 1)
            case Action.STACKS:
                dump_stacks()
        return self.stop_after is not None and step >= self.stop_after

    def plan_has_ended(self, outcome: Outcome) -> bool:
        """Collective. Saves when the plan's capacity nears its end; True when the job has none after that."""
        if outcome.save:
            self.save()
        if not outcome.plan_end:
            return False
        self._plan_seen = True
        self.log.event("stop", reason="the training plan's reservation ends", step=self.progress.step)
        self.save(block=True)
        if self.plan.continues:
            return False
        self.cause = "the training plan's last reservation ends"
        self.flush(FLUSH_AT_END_SECONDS)
        return True

    def checkpoint_due(self) -> bool:
        return self.progress.step % self.job.checkpoint_interval == 0

    def save(self, *, block: bool = False) -> None:
        """Collective. Saves the state after the step just taken, once."""
        step = self.progress.step
        self.status.phase = "save"
        with self.watchdog.slow("save"):
            if self.saved_step == step:
                if block:
                    self.store.wait()
                return
            if self.faults:
                self.faults.before_save(step)
            handle = self.store.save(step, snapshot(self.model, self.optimizer), self._manifest(), block=block)
        self.saved_step, self._saved_at = step, time.monotonic()
        self._stall += handle.stall_seconds

    def _manifest(self) -> dict[str, Any]:
        return {
            "tokens": self.progress.tokens,
            "position": self.progress.position,
            "config_hash": self.job.model_hash,
            "precision": self.job.precision.value,
            "backend": self.backend,
            "train": {
                "progress": self.progress.state(),
                "optimizer_step": optimizer_step(self.optimizer),
                "loss_scale": self.scale.state(),
                "losses": self.losses.state(),
                "data": self.fingerprint,
            },
        }

    def validation_due(self) -> bool:
        interval = self.job.training.validation_interval_steps
        if self.validation is None or interval is None:
            return False
        return self.progress.step % interval == 0 or self.progress.step == self.job.steps

    def validate(self) -> bool:
        """Collective. Prints the validation loss; False when a rank was told to stop meanwhile."""
        assert self.validation is not None
        step = self.progress.step

        self.status.phase = "validation"

        def before_batch() -> None:
            self.watchdog.beat("validation", slow=True)
            if self.faults:
                self.faults.pause("slow_validation", step, self.stop)

        started = time.perf_counter()
        loss = validation_loss(
            self.model, self.validation, self.job, self.rank, self.hardware.device, self.stop, before_batch
        )
        if loss is None:
            return False
        self.log.event("validation", step=step, validation_loss=loss, seconds=round(time.perf_counter() - started, 3))
        return True

    # ------------------------------------------------------------------ ends

    def stopped(self, why: str) -> Verdict:
        """Collective. Saves what was done, waits for it to be safe, and ends as stopped."""
        self.cause = why
        self.log.event("stop", reason=why, step=self.progress.step)
        if self.meter.steps:
            self.save(block=True)
        self.flush(FLUSH_AFTER_SIGNAL_SECONDS)
        return Verdict.STOPPED

    def diverged(self, step: int, why: str) -> Verdict:
        """Collective. Ends without a save: the newest checkpoint is older than the bad step."""
        self.cause, self.failed_step = f"step {step}: {why}", step
        self.log.event("diverged", step=step, reason=why, position=self.progress.position)
        self.store.wait()
        return Verdict.DIVERGED

    def finish_save(self, seconds: float) -> None:
        """Gives a background save that many seconds; its own failure is not the news here."""
        waiting = threading.Thread(target=self._wait_quietly, daemon=True)
        waiting.start()
        waiting.join(seconds)

    def _wait_quietly(self) -> None:
        with contextlib.suppress(Exception):
            self.store.wait()

    def flush(self, seconds: float) -> None:
        """Collective. Waits that long for the newest checkpoint to be durable; after a signal less, whenever it comes."""
        end = time.time() + seconds

        def deadline() -> float:
            return end if self.stop.since is None else min(end, self.stop.since + FLUSH_AFTER_SIGNAL_SECONDS)

        with self.watchdog.slow("flush"):
            if not self.store.flush_durable(deadline, lambda: self.watchdog.beat("flush", slow=True)):
                self.log.note(f"the checkpoint of step {self.saved_step} is complete but was not seen durable in time")
