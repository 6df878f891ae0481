"""Documents out of files: text and JSON Lines, plain, gzip or Zstandard, one at a time, in constant memory."""

from __future__ import annotations

import codecs
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from blackwell.findings import Finding, FindingsError

PIECE_CHARACTERS = 1 << 20
"""A longer text is tokenized in pieces cut after a line end, so that one huge file does not need huge memory."""
MAX_PROBLEMS = 20

InvalidUtf8 = Literal["error", "replace", "skip"]
DocumentPer = Literal["file", "line"]
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_LEGAL_UTF8 = "UTF-8 text, or --invalid-utf8 replace or skip"


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a part of a very long one."""

    text: str
    prompt: str | None = None
    """What comes before `text` without being trained on; None for plain text."""
    first: bool = True
    last: bool = True


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a JSON Lines record: either `text`, or `prompt` and `response`."""

    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"


class Problems:
    """Documents that cannot be used. Reading goes on after one, so that a person sees many at once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.replaced = 0
        """Documents with bytes that are not UTF-8, replaced or skipped."""
        self.empty = 0

    def add(self, place: str, message: str, legal: str | None = None) -> None:
        self.findings.append(Finding(id="BTS-406", path=place, message=message, legal=legal))
        if len(self.findings) >= MAX_PROBLEMS:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raises FindingsError (BTS-406) with all that were found."""
        if self.findings:
            raise FindingsError(self.findings)


def find_files(inputs: Iterable[Path], pattern: str = "**/*") -> list[Path]:
    """Files named directly and those under named folders that match `pattern`, in a stable order.

    Raises:
        FindingsError: BTS-406 for every input that does not exist or has no files.
    """
    files: list[Path] = []
    problems = Problems()
    for given in inputs:
        if given.is_file():
            files.append(given)
        elif given.is_dir():
            relative = ((path, path.relative_to(given).parts) for path in sorted(given.glob(pattern)))
            found = [path for path, parts in relative if path.is_file() and not any(p[0] == "." for p in parts)]
            files += found
            if not found:
                problems.add(str(given), f"no file in the folder matches {pattern!r}")
        else:
            problems.add(str(given), "no such file or folder")
    problems.raise_if_any()
    return files


def read_documents(
    files: Iterable[Path],
    problems: Problems,
    *,
    keys: Keys = Keys(),
    invalid_utf8: InvalidUtf8 = "error",
    document_per: DocumentPer = "file",
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Iterator[Piece]:
    """The documents of all files, in order.

    Args:
        problems: takes the documents that cannot be used, with file and line number.
        document_per: whether a text file is one document, or each of its lines is.
        on_bytes: told how many bytes of the files (as stored, compressed or not) were read since the last call.
    """
    for file in files:
        kind = Path(file.name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
        try:
            with file.open("rb") as raw, _decompressed(file, _Counted(raw, on_bytes)) as stream:
                if kind in _JSON_LINES:
                    yield from _json_lines(file, stream, keys, problems, invalid_utf8)
                else:
                    yield from _text(file, stream, document_per, problems, invalid_utf8)
        except (OSError, EOFError, _zstd_error()) as error:
            problems.add(str(file), f"cannot be read: {error}")


class _Counted(io.RawIOBase):
    """Counts the bytes read through it."""

    def __init__(self, raw: IO[bytes], on_bytes: Callable[[int], None]) -> None:
        self._raw, self._on_bytes = raw, on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._raw.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self._on_bytes(len(chunk))
        return len(chunk)


def _decompressed(file: Path, raw: io.RawIOBase) -> Any:
    buffered = io.BufferedReader(raw, 1 << 20)
    if file.suffix == ".gz":
        return gzip.GzipFile(fileobj=buffered)
    if file.suffix == ".zst":
        import zstandard  # only here: the training container has no need of it

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True))
    return buffered


def _zstd_error() -> type[Exception]:
    try:
        from zstandard import ZstdError
    except ImportError:
        return OSError
    return ZstdError


def _decode(data: bytes, place: str, problems: Problems, invalid_utf8: InvalidUtf8) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.replaced += 1
        if invalid_utf8 == "replace":
            return data.decode("utf-8", errors="replace")
        if invalid_utf8 == "error":
            problems.add(place, f"not UTF-8 at byte {error.start}", _LEGAL_UTF8)
        return None


def _json_lines(file: Path, stream: Any, keys: Keys, problems: Problems, invalid_utf8: InvalidUtf8) -> Iterator[Piece]:
    legal = f'{{"{keys.text}": "..."}} or {{"{keys.prompt}": "...", "{keys.response}": "..."}}'
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        text = _decode(line, place, problems, invalid_utf8)
        if text is None:
            continue
        try:
            record = json.loads(text.removeprefix("\ufeff"))
        except (json.JSONDecodeError, RecursionError) as error:
            problems.add(place, f"not valid JSON: {error}", "one JSON object per line")
            continue
        if not isinstance(record, dict):
            problems.add(place, f"a JSON {type(record).__name__}, not an object", legal)
        elif isinstance(record.get(keys.text), str):
            if record[keys.text]:
                yield from _pieces(record[keys.text])
            else:
                problems.empty += 1
        elif isinstance(record.get(keys.prompt), str) and isinstance(record.get(keys.response), str):
            yield Piece(record[keys.response], prompt=record[keys.prompt])
        elif keys.text in record:
            problems.add(place, f"{keys.text} is a JSON {type(record[keys.text]).__name__}, not a string", legal)
        else:
            found = ", ".join(sorted(record)[:8]) or "none"
            problems.add(place, f"no text in the record (its keys: {found})", legal)


def _text(
    file: Path, stream: Any, document_per: DocumentPer, problems: Problems, invalid_utf8: InvalidUtf8
) -> Iterator[Piece]:
    if document_per == "line":
        for number, line in enumerate(stream, start=1):
            text = _decode(line.rstrip(b"\r\n"), f"{file}:{number}", problems, invalid_utf8)
            if text:
                yield from _pieces(text)
            elif text is not None:
                problems.empty += 1
        return
    held, first = "", True
    for block in _decoded_blocks(file, stream, problems, invalid_utf8):
        held += block
        while len(held) > 2 * PIECE_CHARACTERS:
            cut = held.rfind("\n", 0, PIECE_CHARACTERS) + 1 or PIECE_CHARACTERS
            yield Piece(held[:cut], first=first, last=False)
            held, first = held[cut:], False
    if held:
        yield Piece(held, first=first)
    elif first:
        problems.empty += 1


def _decoded_blocks(file: Path, stream: Any, problems: Problems, invalid_utf8: InvalidUtf8) -> Iterator[str]:
    """A text file as text, a MiB at a time."""
    place = str(file)
    if invalid_utf8 == "skip":  # nothing may be given out before the whole file is known to be good
        with file.open("rb") as raw, _decompressed(file, _Counted(raw, lambda _: None)) as ahead:
            before = problems.replaced
            for _ in _blocks(place, ahead, problems, "skip"):
                pass
            if problems.replaced > before:
                return
    yield from _blocks(place, stream, problems, invalid_utf8)


def _blocks(place: str, stream: Any, problems: Problems, invalid_utf8: InvalidUtf8) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("strict" if invalid_utf8 != "replace" else "replace")
    done, bad = 0, False
    while True:
        data = stream.read(1 << 20)
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            problems.replaced += 1
            if invalid_utf8 == "error":
                problems.add(place, f"not UTF-8 near byte {done + error.start}", _LEGAL_UTF8)
            return
        bad = bad or (invalid_utf8 == "replace" and "\ufffd" in text)
        yield text
        done += len(data)
        if not data:
            problems.replaced += bad
            return


def _pieces(text: str) -> Iterator[Piece]:
    if len(text) <= 2 * PIECE_CHARACTERS:
        yield Piece(text)
        return
    start, first = 0, True
    while start < len(text):
        end = len(text)
        if end - start > 2 * PIECE_CHARACTERS:
            end = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1 or start + PIECE_CHARACTERS
        yield Piece(text[start:end], first=first, last=end == len(text))
        start, first = end, False
