"""Large wheels in pieces, for a GPU machine that has no network and takes files of at most 64 MiB at a time.

python -m benchmarks.gpu.pieces split transformer_engine_cu13-2.20.2-py3-none-manylinux_2_28_x86_64.whl build/gpu
python -m benchmarks.gpu.pieces join build/gpu wheels     # on the GPU machine, after the last piece came
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

PIECE_BYTES = 60 * 2**20
_INDEX = ".pieces.json"


def split(source: Path, folder: Path, size: int = PIECE_BYTES) -> list[Path]:
    """Cuts a file into numbered pieces and leaves an index with its SHA-256 beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    digest, pieces = hashlib.sha256(), []
    with source.open("rb") as file:
        while piece := file.read(size):
            digest.update(piece)
            path = folder / f"{source.name}.{len(pieces):03d}"
            path.write_bytes(piece)
            pieces.append(path)
    index = {"name": source.name, "sha256": digest.hexdigest(), "pieces": [p.name for p in pieces]}
    (folder / f"{source.name}{_INDEX}").write_text(json.dumps(index))
    return pieces


def join(folder: Path, target: Path) -> list[Path]:
    """Puts every file of a folder of pieces together again.

    Raises:
        ValueError: a piece is missing or damaged; names the file.
    """
    target.mkdir(parents=True, exist_ok=True)
    joined = []
    for index_file in sorted(folder.glob(f"*{_INDEX}")):
        index = json.loads(index_file.read_text())
        path, digest = target / index["name"], hashlib.sha256()
        with path.open("wb") as file:
            for name in index["pieces"]:
                if not (folder / name).is_file():
                    raise ValueError(f"{index['name']}: piece {name} is missing")
                data = (folder / name).read_bytes()
                digest.update(data)
                file.write(data)
        if digest.hexdigest() != index["sha256"]:
            raise ValueError(f"{index['name']}: the pieces do not add up to the file that was split")
        joined.append(path)
    return joined


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["split", source, folder]:
            print(*split(Path(source), Path(folder)), sep="\n")
        case ["join", folder, target]:
            print(*join(Path(folder), Path(target)), sep="\n")
        case _:
            sys.exit(__doc__)
