"""Batches: exact coverage at any world size, masks, prefetching, and clear refusals."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_factory import numbered_dataset, write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from blackwell.findings import FindingsError
from trainer.data import IGNORED, Batch, BatchSource, Prefetcher, TokenDataset, open_dataset
from trainer.data.dataset import streams

LENGTH = 16
TOKENS = 2_003


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenDataset]:
    opened = numbered_dataset(tmp_path_factory.mktemp("numbered"), TOKENS)
    yield opened
    opened.close()


def global_batch(source: BatchSource, position: int, world: int, micro: int) -> list[tuple[list[int], list[int]]]:
    """All rows of a global batch, in the order of their positions."""
    count = source.micro_batches(world, micro)
    batches = [source.batch(position, r, world, micro, m) for m in range(count) for r in range(world)]
    return [(i, label) for b in batches for i, label in zip(b.inputs.tolist(), b.labels.tolist(), strict=True)]


LAYOUTS = [(1, 1), (1, 8), (2, 1), (2, 4), (4, 2), (8, 1), (4, 1)]


@given(position=st.integers(0, 1_000), layouts=st.permutations(LAYOUTS))
@settings(max_examples=25, deadline=None)
def test_the_global_batch_is_the_same_for_every_world_size(
    dataset: TokenDataset, position: int, layouts: list[tuple[int, int]]
) -> None:
    source = BatchSource(dataset, LENGTH, 8, seed=3)
    first, second = (global_batch(source, position, *layout) for layout in layouts[:2])
    assert first == second


def test_every_token_is_a_label_once_per_epoch_while_the_world_changes(dataset: TokenDataset) -> None:
    """World 2 -> 1 -> 4 -> 2 in the middle of an epoch: nothing dropped, nothing twice (titan#811, Automodel#533)."""
    source = BatchSource(dataset, LENGTH, 4, seed=11)
    worlds = itertools.chain([2] * 9, [1] * 5, [4] * 3, itertools.repeat(2))
    seen: list[int] = []
    position = 0
    while position < source.sequences:
        world = next(worlds)
        rows = global_batch(source, position, world, 1)
        for offset, (_, labels) in enumerate(rows):
            if position + offset < source.sequences:
                seen += [label for label in labels if label != IGNORED]
        position += 4
    everything = dataset.tokens(0, TOKENS)
    assert sorted(seen) == sorted(everything[1:].tolist())
    samples = source.indices(0, source.sequences)
    assert sorted(samples.tolist()) == list(range(source.sequences))


def test_rows_are_the_tokens_of_the_shards(dataset: TokenDataset) -> None:
    root = dataset.root
    everything = np.concatenate(
        [np.fromfile(root / s.file, dtype="<u2") for s in dataset.manifest.splits["train"].shards]
    ).astype(np.int64)
    assert len(dataset.manifest.splits["train"].shards) > 2, "rows must cross shard borders for this test to mean much"
    source = BatchSource(dataset, LENGTH, 4, seed=2)
    for position in range(0, source.sequences, 4):
        for sample, (inputs, labels) in zip(
            source.indices(position, 4), global_batch(source, position, 2, 1), strict=True
        ):
            start = int(sample) * LENGTH
            known = min(LENGTH, TOKENS - 1 - start)
            assert inputs[:known] == everything[start : start + known].tolist()
            assert labels[:known] == everything[start + 1 : start + 1 + known].tolist()
            assert labels[known:] == [IGNORED] * (LENGTH - known)


def test_positioned_reads_give_the_same_as_a_map(dataset: TokenDataset) -> None:
    """FastFile mounts may refuse a memory map."""
    read = open_dataset(dataset.root, "train", mapped=False)
    assert read is not None
    with_map, without = (global_batch(BatchSource(d, LENGTH, 8, seed=1), 40, 1, 8) for d in (dataset, read))
    read.close()
    assert with_map == without


def test_fastfile_channels_are_known_by_their_mount(tmp_path: Path) -> None:
    channel, other = tmp_path / "input" / "data" / "train", tmp_path / "in put"
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/nvme1n1 / ext4 rw 0 0\n"
        f"s3-fuse {tmp_path}/input/data/train fuse.s3 ro 0 0\n"
        f"other {tmp_path}/in\\040put fuse ro 0 0\n"
        f"tmpfs {tmp_path}/input/data/train/local tmpfs rw 0 0\n"
    )
    assert streams(channel, mounts)
    assert streams(other, mounts)
    assert not streams(channel / "local", mounts)
    assert not streams(tmp_path / "input" / "data", mounts)
    assert not streams(channel, tmp_path / "none")


def test_order_hash_names_the_global_batch(dataset: TokenDataset) -> None:
    source = BatchSource(dataset, LENGTH, 8, seed=1)
    assert source.order_hash(16) == BatchSource(dataset, LENGTH, 8, seed=1).order_hash(16)
    others = [source.order_hash(24), BatchSource(dataset, LENGTH, 8, seed=2).order_hash(16)]
    assert source.order_hash(16) not in others
    assert len(source.order_hash(0)) == 16
    int(source.order_hash(0), 16)


def test_document_mask_restarts_positions_and_drops_the_label_after_a_border(tmp_path: Path) -> None:
    write_dataset(tmp_path, ["ab", "cdef", "g", "hijklmnop"])
    opened = open_dataset(tmp_path / "dataset", "train")
    assert opened is not None
    source = BatchSource(opened, 10, 1, seed=0, document_mask=True)
    sample = source.indices(0, 2).tolist().index(0)
    batch = source.batch(sample, 0, 1, 1, 0)
    assert batch.positions is not None
    assert batch.doc_ids is not None
    assert batch.cu_seqlens is not None
    eos = opened.eos_id
    assert [t == eos for t in batch.inputs[0].tolist()] == [c == "." for c in "ab.cdef.g."]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 0, 1]]
    assert batch.doc_ids.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 2, 2]]
    assert batch.cu_seqlens.tolist() == [0, 3, 8, 10]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.max_seqlen == 5
    assert [label == IGNORED for label in batch.labels[0].tolist()] == [c == "." for c in "ab.cdef.g."]
    assert batch.labels[0, 1].item() == eos, "the end of a document is learnt"


def test_loss_on_responses_only(tmp_path: Path) -> None:
    """Also for the shards that were closed before the first prompt was met."""
    write_dataset(tmp_path, ["plain", ("ask", "say"), "text"], shard_tokens=4)
    opened = open_dataset(tmp_path / "dataset", "train")
    assert opened is not None
    total = opened.num_tokens
    assert opened.has_loss_mask
    assert len(opened.manifest.splits["train"].shards) == 3
    source = BatchSource(opened, total - 1, 1, seed=0)
    batch = source.batch(0, 0, 1, 1, 0)
    plain, prompt, response, text = [True] * 5, [False] * 3, [True] * 4, [True] * 5
    expected = plain + prompt + response + text  # the first token of all is no label
    learnt = [label != IGNORED for label in batch.labels[0].tolist()]
    assert learnt == expected
    assert batch.num_labels == sum(expected)


def test_prefetching_gives_the_same_batches_and_counts_the_wait(dataset: TokenDataset) -> None:
    source = BatchSource(dataset, LENGTH, 8, seed=9)
    ahead = source.prefetch(16, 1, 2, 2, depth=2)
    expected = [source.batch(16 + 8 * step, 1, 2, 2, micro) for step in range(3) for micro in range(2)]
    for batch in expected:
        got = next(ahead)
        assert torch.equal(got.inputs, batch.inputs)
        assert torch.equal(got.labels, batch.labels)
    assert ahead.take_wait_seconds() > 0
    assert ahead.take_wait_seconds() == 0
    ahead.close()


def test_a_stop_ends_the_wait_for_data(dataset: TokenDataset) -> None:
    never = threading.Event()

    def blocked() -> Iterator[Batch]:
        never.wait()
        yield from ()

    ahead = Prefetcher(blocked(), depth=1)
    asked = iter([False, True])
    assert ahead.get(lambda: next(asked)) is None
    never.set()
    ahead.close()


def test_what_the_reading_thread_raises_reaches_the_trainer() -> None:
    def failing() -> Iterator[Batch]:
        raise OSError(5, "Input/output error")
        yield

    ahead = Prefetcher(failing(), depth=1)
    with pytest.raises(OSError, match="Input/output error"):
        ahead.get()
    ahead.close()


def test_a_model_with_a_smaller_vocabulary_is_refused(dataset: TokenDataset) -> None:
    with pytest.raises(FindingsError) as refused:
        dataset.check(vocab_size=256, seq_length=TOKENS)
    by_id = {f.id: f for f in refused.value.findings}
    assert by_id.keys() == {"BTS-403", "BTS-404"}, "both at once"
    assert (by_id["BTS-403"].given, by_id["BTS-403"].nearest) == (256, 257)
    assert (by_id["BTS-404"].given, by_id["BTS-404"].nearest) == (TOKENS, TOKENS - 1)
    dataset.check(vocab_size=257, seq_length=TOKENS - 1)


def test_a_batch_that_cannot_be_divided_is_refused(dataset: TokenDataset) -> None:
    source = BatchSource(dataset, LENGTH, 12, seed=1)
    with pytest.raises(FindingsError) as refused:
        source.batch(0, 0, 4, 2, 0)
    finding = refused.value.findings[0]
    assert (finding.id, finding.given, finding.nearest) == ("BTS-111", 12, 16)


def test_a_checkpoint_of_other_data_is_refused(dataset: TokenDataset, tmp_path: Path) -> None:
    saved = BatchSource(dataset, LENGTH, 8, seed=1).fingerprint()
    BatchSource(dataset, LENGTH, 32, seed=1).check_fingerprint(saved)  # the batch size is no part of the order
    other = numbered_dataset(tmp_path, TOKENS - 100)
    with pytest.raises(FindingsError) as refused:
        BatchSource(other, LENGTH * 2, 8, seed=2).check_fingerprint(saved)
    assert {f.id for f in refused.value.findings} == {"BTS-407"}
    assert {f.path for f in refused.value.findings} == {"data", "training.seq_length", "training.seed"}
