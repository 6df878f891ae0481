"""Validation loss: the same global batches every time, no dropout, given up at once when told to stop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainer.data import BatchSource
from trainer.model.transformer import LayerStack
from trainer.parallel import reshard
from trainer.settings import Job
from trainer.step import Votes, exchange, run_model


@torch.no_grad()
def validation_loss(
    model: LayerStack,
    source: BatchSource,
    job: Job,
    rank: int,
    device: torch.device,
    should_stop: Callable[[], bool],
    before_batch: Callable[[], None] = lambda: None,
) -> float | None:
    """Mean loss in nats per token over `validation_steps` global batches; None when any rank was told to stop.

    Args:
        before_batch: called before every batch, for the watchdog and for test faults.
    """
    model.eval()
    try:
        loss_sum, labels = 0.0, 0
        for step in range(job.training.validation_steps):
            before_batch()
            total = torch.zeros((), dtype=torch.float64, device=device)
            counted = 0
            for micro in range(job.accumulation):
                batch = source.batch(step * job.global_batch_size, rank, job.world_size, job.micro_batch_size, micro)
                counted += batch.num_labels
                total += run_model(model, batch.to(device), 1.0).total.double()
            outcome = exchange(total, counted, Votes(stop=should_stop()), None, 1.0)
            if outcome.stop:
                return None
            loss_sum += outcome.loss * outcome.labels
            labels += outcome.labels
        return loss_sum / labels if labels else None
    finally:
        model.train()
        reshard(model)
