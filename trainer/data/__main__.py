"""`python -m trainer.data`: make a tokenizer, prepare a dataset folder, look at one, verify one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from blackwell.findings import FindingsError
from trainer.data.dataset import TokenDataset, open_dataset
from trainer.data.documents import DocumentPer, InvalidUtf8, Keys, Piece, Problems, find_files, read_documents
from trainer.data.manifest import read_manifest
from trainer.data.prepare import END_TOKENS, SHARD_TOKENS, SPLITS, prepare, train_tokenizer


def _inputs(parser: argparse.ArgumentParser) -> None:
    keys = Keys()
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help="text or .jsonl files (also .gz, .zst), or folders of them",
    )
    parser.add_argument("--glob", default="**/*", help="which files of a folder (default: %(default)s)")
    parser.add_argument("--text-key", default=keys.text, help="JSON Lines key of the text (default: %(default)s)")
    parser.add_argument(
        "--prompt-key", default=keys.prompt, help="JSON Lines key of what is not trained on (default: %(default)s)"
    )
    parser.add_argument(
        "--response-key", default=keys.response, help="JSON Lines key of what follows the prompt (default: %(default)s)"
    )
    parser.add_argument(
        "--invalid-utf8",
        choices=get_args(InvalidUtf8),
        default="error",
        help="documents that are not UTF-8 (default: %(default)s)",
    )
    parser.add_argument(
        "--document-per",
        choices=get_args(DocumentPer),
        default="file",
        help="what a document is in a text file (default: %(default)s)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("prepare", help="tokenize a corpus into a dataset folder")
    _inputs(make)
    make.add_argument("--out", type=Path, required=True, help="the dataset folder to write")
    make.add_argument("--tokenizer", type=Path, required=True, help="a Hugging Face tokenizer.json")
    make.add_argument(
        "--eos", help=f"end-of-document token (default: the first of {', '.join(END_TOKENS)} that exists)"
    )
    make.add_argument(
        "--validation-fraction",
        type=_fraction,
        default=0.01,
        help="share of the documents, by hash of their text (default: %(default)s)",
    )
    make.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, help="tokens per file (default: %(default)s)")
    make.add_argument("--overwrite", action="store_true", help="replace a dataset that is already there")
    train = commands.add_parser("train-tokenizer", help="train a byte-level BPE tokenizer")
    _inputs(train)
    train.add_argument("--vocab-size", type=int, required=True)
    train.add_argument("--out", type=Path, required=True, help="the tokenizer.json to write")
    show = commands.add_parser("show", help="what a dataset folder holds")
    show.add_argument("folder", type=Path)
    verify = commands.add_parser("verify", help="compare every file's SHA-256 with the manifest")
    verify.add_argument("folder", type=Path)
    return parser


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


@contextmanager
def _progress(total_bytes: int, what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int, int], None]]]:
    """A progress bar over the bytes of the inputs on a terminal; nothing elsewhere, or without the rich package."""
    if find_spec("rich") is None:
        yield lambda _: None, lambda tokens, documents: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[count]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total_bytes, count="")
        totals = [0, 0]

        def on_tokens(tokens: int, documents: int) -> None:
            totals[0] += tokens
            totals[1] += documents
            progress.update(task, count=f"{totals[0]:,} tokens, {totals[1]:,} documents")

        yield lambda count: progress.advance(task, count), on_tokens


def _documents(
    options: argparse.Namespace, files: list[Path], problems: Problems, on_bytes: Callable[[int], None]
) -> Iterator[Piece]:
    keys = Keys(options.text_key, options.prompt_key, options.response_key)
    return read_documents(
        files,
        problems,
        keys=keys,
        invalid_utf8=options.invalid_utf8,
        document_per=options.document_per,
        on_bytes=on_bytes,
    )


def _prepare(options: argparse.Namespace) -> None:
    files, problems = find_files(options.inputs, options.glob), Problems()
    with _progress(sum(f.stat().st_size for f in files), "tokenizing") as (on_bytes, on_tokens):
        prepare(
            _documents(options, files, problems, on_bytes), options.out, options.tokenizer, problems, eos=options.eos,
            validation_fraction=options.validation_fraction, shard_tokens=options.shard_tokens,
            overwrite=options.overwrite, on_tokens=on_tokens,
        )  # fmt: skip
    _show(options.out)
    if problems.replaced:
        print(f"not UTF-8: {problems.replaced} documents ({options.invalid_utf8})")
    if problems.empty:
        print(f"empty, left out: {problems.empty} documents")


def _train_tokenizer(options: argparse.Namespace) -> None:
    files, problems = find_files(options.inputs, options.glob), Problems()
    with _progress(sum(f.stat().st_size for f in files), "reading") as (on_bytes, _):
        size = train_tokenizer(
            _documents(options, files, problems, on_bytes), options.vocab_size, options.out, problems
        )
    print(f"{options.out}: {size} tokens")
    if size < options.vocab_size:
        print(f"the corpus has no more pairs to merge: {size} of the {options.vocab_size} tokens asked for")


def _show(folder: Path) -> None:
    manifest = read_manifest(folder)
    print(f"{folder}: vocabulary {manifest.vocab_size}, {manifest.dtype}, end token {manifest.eos_id}")
    for name, split in manifest.splits.items():
        masked = ", loss on responses only" if any(s.loss_mask for s in split.shards) else ""
        print(f"  {name}: {split.tokens:,} tokens in {split.documents:,} documents, {len(split.shards)} shards{masked}")
    for name in SPLITS:
        if name not in manifest.splits:
            print(f"  {name}: none")


def _verify(folder: Path) -> None:
    opened: list[TokenDataset] = [d for name in read_manifest(folder).splits if (d := open_dataset(folder, name))]
    for dataset in opened:
        dataset.verify()
    print(f"{folder}: every file is as its manifest says")


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, 2 when findings refuse, 1 when the machine does: a full disk, a folder that may not be written."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "prepare":
                _prepare(options)
            case "train-tokenizer":
                _train_tokenizer(options)
            case "show":
                _show(options.folder)
            case _:
                _verify(options.folder)
    except FindingsError as error:
        for finding in error.findings:
            print(finding.line(), file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or getattr(options, "out", None) or getattr(options, "folder", "")
        print(f"{where}: {error.strerror or error}; nothing was finished", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
