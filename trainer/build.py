"""Model and optimizer of a job, made on the meta device, sharded, then given memory and initial weights."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from trainer.model.backend import Backend
from trainer.model.initialize import initialize
from trainer.model.transformer import LanguageModel, LayersModel, LayerStack
from trainer.parallel import adapt_layers, shard
from trainer.precision import Hardware, compute_dtype, make_backend, parameters_dtype
from trainer.settings import Job


def make_model(job: Job, backend: Backend) -> LayerStack:
    """The job's model on the current default device, without initial weights."""
    training = job.training
    if job.is_language_model:
        return LanguageModel(job.shape, backend, training.dropout, training.cross_entropy)
    return LayersModel(job.shape, backend, training.dropout, parameters_dtype(training))


def build_model(job: Job, hardware: Hardware, backend: str, mesh: DeviceMesh) -> LayerStack:
    """The sharded model with its initial weights.

    Args:
        backend: `te` or `torch`.

    Raises:
        FindingsError: as trainer.precision.make_backend.
    """
    layers = make_backend(job.training, job.shape, backend, job.document_mask, lambda: mesh.get_group("shard"))
    with torch.device("meta"):
        model = make_model(job, layers)
    adapt_layers(model, job.recompute, job.training.compile)
    shard(model, mesh, compute_dtype(job.precision), job.training.parallel)
    layers.materialize(model, hardware.device)
    initialize(model, job.training.seed, job.shape.num_hidden_layers)
    return model.train()
