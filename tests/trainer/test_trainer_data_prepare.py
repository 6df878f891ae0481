"""Preparing a dataset: formats, counts, digests, splits, memory, and every refusal with its place."""

from __future__ import annotations

import errno
import gzip
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from dataset_factory import byte_tokenizer, write_dataset
from tokenizers import Tokenizer

from blackwell.findings import FindingsError
from trainer.data import documents, open_dataset
from trainer.data.__main__ import main
from trainer.data.documents import Piece, Problems, find_files, read_documents
from trainer.data.prepare import prepare

TEXTS = ["first document\nof two lines\n", "zweites Dokument: äöü €", "third <|endoftext|> with a marker inside"]


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def decoded(folder: Path, split: str = "train") -> list[str]:
    """The documents of a dataset, back as text."""
    dataset = open_dataset(folder, split)
    assert dataset is not None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    starts = [*dataset.documents().tolist(), dataset.num_tokens]
    texts = []
    for start, stop in itertools.pairwise(starts):
        ids = dataset.tokens(start, stop).tolist()
        assert ids[-1] == dataset.eos_id
        assert dataset.eos_id not in ids[:-1]
        texts.append(tokenizer.decode(ids[:-1], skip_special_tokens=False))
    return texts


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return byte_tokenizer(tmp_path / "tokenizer.json")


def as_jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", as_jsonl(TEXTS)),
        ("a.jsonl.gz", gzip.compress(as_jsonl(TEXTS))),
        ("a.jsonl.zst", zstandard.compress(as_jsonl(TEXTS))),
        ("a.jsonl.zst", zstandard.compress(as_jsonl(TEXTS[:1])) + zstandard.compress(as_jsonl(TEXTS[1:]))),
        ("a.jsonl", b"\n" + as_jsonl(TEXTS).replace(b"\n", b"\r\n\r\n")),
    ],
    ids=["jsonl", "gzip", "zstd", "zstd-frames", "blank-lines"],
)
def test_documents_come_back_as_they_were(tmp_path: Path, tokenizer: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    assert run("prepare", "--tokenizer", tokenizer, "--out", out, "--validation-fraction", 0, tmp_path / name) == 0
    assert decoded(out) == TEXTS
    manifest = json.loads((out / "manifest.json").read_text())
    train = manifest["splits"]["train"]
    assert train["documents"] == 3
    assert train["tokens"] == sum(len(t.encode()) + 1 for t in TEXTS)
    assert manifest["dtype"] == "uint16"
    for shard in train["shards"]:
        assert shard["sha256"] == hashlib.sha256((out / shard["file"]).read_bytes()).hexdigest()
    assert run("verify", out) == 0


def test_text_files_of_a_folder_in_a_stable_order(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "b.txt").write_text("bee")
    (folder / "deep" / "a.txt.gz").write_bytes(gzip.compress(b"deep a"))
    (folder / "a.txt").write_text("")
    (folder / ".hidden" / "c.txt").write_text("hidden")
    (folder / "d.md").write_text("left out by the pattern")
    out = tmp_path / "out"
    assert (
        run(
            "prepare", "--tokenizer", tokenizer, "--out", out, "--glob", "**/*.txt*", "--validation-fraction", 0, folder
        )
        == 0
    )
    assert decoded(out) == ["bee", "deep a"]


def test_one_document_per_line(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"one\r\ntwo\n\nthree")
    out = tmp_path / "out"
    arguments = ("--document-per", "line", "--validation-fraction", 0, tmp_path / "lines.txt")
    assert run("prepare", "--tokenizer", tokenizer, "--out", out, *arguments) == 0
    assert decoded(out) == ["one", "two", "three"]


def test_a_huge_document_is_one_document(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 10_000
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", limit)
    text = "".join(f"line {n} äöü\n" for n in range(limit // 2))
    (tmp_path / "huge.txt").write_text(text)
    (tmp_path / "huge.jsonl").write_text(json.dumps({"text": text}) + "\n")
    for name in ("huge.txt", "huge.jsonl"):
        pieces = list(read_documents([tmp_path / name], Problems()))
        assert len(pieces) > 2
        assert max(len(p.text) for p in pieces) <= 2 * limit
        assert "".join(p.text for p in pieces) == text
        assert [p.first for p in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [p.last for p in pieces] == [False] * (len(pieces) - 1) + [True]
    out = tmp_path / "out"
    assert (
        run("prepare", "--tokenizer", tokenizer, "--out", out, "--validation-fraction", 0, tmp_path / "huge.txt") == 0
    )
    dataset = open_dataset(out, "train")
    assert dataset is not None
    assert (dataset.num_documents, dataset.num_tokens) == (1, len(text.encode()) + 1)


def test_the_validation_split_is_by_content(tmp_path: Path) -> None:
    texts = [f"document {n}" for n in range(2_000)]
    write_dataset(tmp_path, texts, validation_fraction=0.1)
    train, validation = decoded(tmp_path / "dataset"), decoded(tmp_path / "dataset", "validation")
    assert sorted(train + validation) == sorted(texts)
    assert 140 < len(validation) < 260  # binomial(2000, 0.1): five standard deviations are 67
    write_dataset(tmp_path, [*texts[::-1], *texts], validation_fraction=0.1)
    assert set(decoded(tmp_path / "dataset", "validation")) == set(validation), "order and copies change nothing"


def test_without_a_validation_split_there_is_none(tmp_path: Path) -> None:
    write_dataset(tmp_path, TEXTS)
    assert open_dataset(tmp_path / "dataset", "validation") is None


@pytest.mark.parametrize(("extra", "dtype"), [(65_535 - 257, "uint16"), (65_536 - 257, "uint32")])
def test_two_bytes_only_below_65536(tmp_path: Path, extra: int, dtype: str) -> None:
    manifest = write_dataset(tmp_path, ["text"], extra_tokens=extra)
    assert (manifest.vocab_size, manifest.dtype) == (257 + extra, dtype)
    dataset = open_dataset(tmp_path / "dataset", "train")
    assert dataset is not None
    assert dataset.tokens(4, 5).tolist() == [256 + extra], "the end token has the highest id"


def test_shards_hold_whole_documents(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, ["x" * n for n in range(1, 60)], shard_tokens=200)
    shards = manifest.splits["train"].shards
    assert len(shards) > 5
    for shard in shards:
        tokens = np.fromfile(tmp_path / "dataset" / shard.file, dtype="<u2")
        starts = np.fromfile(tmp_path / "dataset" / shard.documents.file, dtype="<u8")
        assert tokens[-1] == manifest.eos_id
        assert starts[0] == 0
        assert (tokens[starts[1:].astype(int) - 1] == manifest.eos_id).all()


def refusals(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert run(*arguments) == 2
    return capsys.readouterr().err.splitlines()


def test_bad_lines_are_all_named_with_file_and_line(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "good"}\n{"text": \n[1]\n{"body": "x"}\n{"text": "\xff"}\n{"text": 5}\n')
    other = tmp_path / "latin.txt"
    other.write_bytes("für".encode("latin-1"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(as_jsonl(TEXTS * 50))[:-40])
    lines = refusals(capsys, "prepare", "--tokenizer", tokenizer, "--out", tmp_path / "out", bad, other, cut)
    assert [line.split(": ")[1].removeprefix(f"{tmp_path}/") for line in lines] == [
        "bad.jsonl:2", "bad.jsonl:3", "bad.jsonl:4", "bad.jsonl:5", "bad.jsonl:6", "latin.txt", "cut.jsonl.gz"
    ]  # fmt: skip
    assert all(line.startswith("BTS-406 error") for line in lines)
    assert "its keys: body" in lines[2]
    assert "byte 1" in lines[5]
    assert not (tmp_path / "out" / "manifest.json").exists(), "a folder with a manifest is whole"


def test_too_many_bad_lines_end_the_work_early(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n" * 1_000)
    with pytest.raises(FindingsError) as refused:
        list(read_documents([tmp_path / "bad.jsonl"], Problems()))
    assert len(refused.value.findings) == 20


@pytest.mark.parametrize(("how", "expected"), [("replace", ["f\ufffdr", "good"]), ("skip", ["good"])])
def test_text_that_is_not_utf8_on_request(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], how: str, expected: list[str]
) -> None:
    (tmp_path / "a.txt").write_bytes("für".encode("latin-1"))
    (tmp_path / "b.txt").write_text("good")
    out, inputs = tmp_path / "out", (tmp_path / "a.txt", tmp_path / "b.txt")
    assert (
        run(
            "prepare",
            "--tokenizer",
            tokenizer,
            "--out",
            out,
            "--invalid-utf8",
            how,
            "--validation-fraction",
            0,
            *inputs,
        )
        == 0
    )
    assert decoded(out) == expected
    assert f"not UTF-8: 1 documents ({how})" in capsys.readouterr().out


def test_missing_inputs_and_tokenizers_are_refused(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "void.txt").write_text("")
    out = tmp_path / "out"
    lines = refusals(capsys, "prepare", "--tokenizer", tokenizer, "--out", out, tmp_path / "none", tmp_path / "empty")
    assert ["no such file" in lines[0], "no file in the folder" in lines[1]] == [True, True]
    [line] = refusals(capsys, "prepare", "--tokenizer", tokenizer, "--out", out, tmp_path / "void.txt")
    assert line.startswith("BTS-404")
    (tmp_path / "broken.json").write_text("{}")
    for bad in ("broken.json", "missing.json"):
        [line] = refusals(capsys, "prepare", "--tokenizer", tmp_path / bad, "--out", out, tmp_path / "void.txt")
        assert line.startswith("BTS-405")
        assert bad in line
    [line] = refusals(
        capsys, "prepare", "--tokenizer", tokenizer, "--eos", "<end>", "--out", out, tmp_path / "void.txt"
    )
    assert line.startswith("BTS-405")
    assert "<|endoftext|>" in line, "the names that would do"


def test_a_dataset_is_not_replaced_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path, TEXTS, shard_tokens=10)
    (tmp_path / "new.txt").write_text("new")
    arguments = (
        "prepare",
        "--tokenizer",
        tmp_path / "tokenizer.json",
        "--out",
        tmp_path / "dataset",
        tmp_path / "new.txt",
    )
    [line] = refusals(capsys, *arguments)
    assert "already holds a dataset" in line
    assert run(*arguments, "--overwrite", "--validation-fraction", 0) == 0
    assert decoded(tmp_path / "dataset") == ["new"]
    assert len(list((tmp_path / "dataset").glob("train-*.bin"))) == 2, "no file of the old dataset is left"


def test_damage_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path, TEXTS, shard_tokens=10)
    folder = tmp_path / "dataset"
    first, second = folder / "train-00000.bin", folder / "train-00001.bin"
    flipped = bytearray(first.read_bytes())
    flipped[3] ^= 1
    first.write_bytes(flipped)
    assert open_dataset(folder, "train") is not None, "content is compared on demand only"
    [line] = refusals(capsys, "verify", folder)
    assert line.startswith("BTS-402")
    assert "train-00000.bin" in line
    first.unlink()
    second.write_bytes(second.read_bytes()[:-2])
    with pytest.raises(FindingsError) as refused:
        open_dataset(folder, "train")
    assert [f.id for f in refused.value.findings] == ["BTS-402", "BTS-402"]
    assert "missing" in refused.value.findings[0].message
    assert (refused.value.findings[1].given, refused.value.findings[1].legal) != (None, None)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"version": 2}', '{"version": 1, "vocab_size": "many"}'])
def test_a_missing_or_damaged_manifest(tmp_path: Path, content: str | None) -> None:
    write_dataset(tmp_path, TEXTS)
    manifest = tmp_path / "dataset" / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_text(content)
    with pytest.raises(FindingsError) as refused:
        open_dataset(tmp_path / "dataset", "train")
    assert [f.id for f in refused.value.findings] == ["BTS-401"]
    assert "manifest.json" in refused.value.findings[0].message


def test_a_trained_tokenizer_prepares_its_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    tokenizer = tmp_path / "made" / "tokenizer.json"
    assert run("train-tokenizer", "--vocab-size", 270, "--out", tokenizer, tmp_path / "corpus.txt") == 0
    assert "270 tokens" in capsys.readouterr().out
    out = tmp_path / "out"
    assert (
        run("prepare", "--tokenizer", tokenizer, "--out", out, "--validation-fraction", 0, tmp_path / "corpus.txt") == 0
    )
    assert decoded(out) == [(tmp_path / "corpus.txt").read_text()]
    [line] = refusals(capsys, "train-tokenizer", "--vocab-size", 100, "--out", tokenizer, tmp_path / "corpus.txt")
    assert "nearest legal value: 257" in line


MEASURE = """
import resource, sys
from trainer.data.__main__ import main
import trainer.data.prepare as prepare
prepare._BATCH_CHARACTERS = 50_000
for corpus in sys.argv[3:]:
    arguments = ["--tokenizer", sys.argv[1], "--out", sys.argv[2], "--overwrite", "--shard-tokens", "200000", corpus]
    assert main(["prepare", *arguments]) == 0
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, tokenizer: Path, repository_root: Path) -> None:
    """Ten times the corpus, hardly more memory; the larger corpus is 10 MiB, its tokens 20."""
    line = as_jsonl(["some words of a document " * 40])
    corpora = [tmp_path / "small.jsonl", tmp_path / "large.jsonl"]
    for corpus, copies in zip(corpora, (1_000, 10_000), strict=True):
        corpus.write_bytes(line * copies)
    command = [sys.executable, "-c", MEASURE, str(tokenizer), str(tmp_path / "out"), *map(str, corpora)]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=True)
    small, large = (int(row.split()[1]) / 1024 for row in done.stdout.splitlines() if row.startswith("peak"))
    assert large - small < 6, (small, large)


def test_folders_without_a_match_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert find_files([tmp_path], "**/*.txt") == [tmp_path / "a.txt"]
    with pytest.raises(FindingsError, match=r"no file in the folder matches '\*\*/\*\.md'"):
        find_files([tmp_path], "**/*.md")


def test_two_preparations_into_one_folder_do_not_mix(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("the first\n")
    (tmp_path / "b.txt").write_text("the second, which is longer\n")

    def documents() -> Iterator[Piece]:
        """While the first one reads, a second one begins."""
        for piece in read_documents([tmp_path / "a.txt"], Problems()):
            assert run("prepare", "--out", tmp_path / "out", "--tokenizer", tokenizer, tmp_path / "b.txt") == 2
            assert "BTS-008" in capsys.readouterr().err
            yield piece

    prepare(documents(), tmp_path / "out", tokenizer, Problems())
    assert decoded(tmp_path / "out") == ["the first\n"]
    assert run("prepare", "--overwrite", "--out", tmp_path / "out", "--tokenizer", tokenizer, tmp_path / "b.txt") == 0


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("some text\n")
    (tmp_path / "file").write_text("")
    command = ("prepare", "--tokenizer", tokenizer, tmp_path / "a.txt", "--out")
    assert run(*command, tmp_path / "file" / "out") == 1
    assert capsys.readouterr().err == f"{tmp_path}/file/out: Not a directory; nothing was finished\n"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trainer.data.prepare._HashedFile.write", full)
    assert run(*command, tmp_path / "out") == 1
    assert capsys.readouterr().err == f"{tmp_path}/out: No space left on device; nothing was finished\n"
    monkeypatch.undo()
    assert run(*command, tmp_path / "out") == 0, "what a full disk left is no dataset and in nobody's way"


def test_a_refused_preparation_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n")
    command = ("prepare", "--out", tmp_path / "out", "--tokenizer", tmp_path / "none.json", tmp_path / "a.txt")
    assert run(*command) == 2
    assert not (tmp_path / "out").exists()


def test_text_of_another_type_is_said(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": 5}\n')
    assert run("prepare", "--out", tmp_path / "out", "--tokenizer", tokenizer, tmp_path / "a.jsonl") == 2
    assert "a.jsonl:1: text is a JSON int, not a string" in capsys.readouterr().err
