"""Training data: token shards on disk, their order, and the batches made from them.

`python -m trainer.data prepare` writes a dataset folder; `open_dataset` opens it; `BatchSource` cuts batches from it.
"""

from trainer.data.batches import IGNORED, Batch, BatchSource, Prefetcher
from trainer.data.dataset import TokenDataset, open_dataset
from trainer.data.manifest import DatasetManifest
from trainer.data.order import SampleOrder

__all__ = [
    "IGNORED",
    "Batch",
    "BatchSource",
    "DatasetManifest",
    "Prefetcher",
    "SampleOrder",
    "TokenDataset",
    "open_dataset",
]
