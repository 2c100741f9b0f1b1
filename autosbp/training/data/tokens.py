"""Token files: memory-mapped token ids, so that a rank only reads its own samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from autosbp.errors import InputError

Tokens = np.ndarray[Any, np.dtype[Any]]
_TEXT_BYTES, _BATCH = 2**16, 64
_UINT16_VOCABULARY = 2**16


def open_tokens(path: Path, vocabulary: int | None, tokenizer: Path | None, cache: Path | None) -> Tokens:
    """Memory-mapped token ids of a file, shape [tokens]; see ``autosbp.training.data`` for formats."""
    if path.suffix == ".npy":
        array: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError("data", str(path), f"expected integers in one dim; got {array.dtype} {list(array.shape)}")
        return array
    if path.suffix == ".bin":
        return _mapped(path, np.uint32 if (vocabulary or 0) > _UINT16_VOCABULARY else np.uint16)
    if tokenizer is None:
        return _mapped(path, np.uint8)
    if cache is None:
        raise InputError("cache", None, "a folder for the tokenised text is needed")
    return _mapped(_tokenised(path, tokenizer, cache), np.uint32)


def _mapped(path: Path, dtype: Any) -> Tokens:
    if not path.stat().st_size:
        raise InputError("data", str(path), "the file is empty")
    return np.memmap(path, dtype=dtype, mode="r")


def _tokenised(text: Path, tokenizer: Path, cache: Path) -> Path:
    """File with the token ids of a text (``uint32``). Rank 0 writes it once; all ranks have to call this."""
    if not tokenizer.is_file():
        raise InputError("tokenizer", str(tokenizer), "no such file")
    key = hashlib.sha256(tokenizer.read_bytes())
    key.update(f"{text.resolve()} {text.stat().st_size} {text.stat().st_mtime_ns}".encode())
    target = cache / f"tokens-{key.hexdigest()[:16]}.bin"
    if not target.is_file() and (not dist.is_initialized() or dist.get_rank() == 0):
        _write_tokens(text, tokenizer, target)
    if dist.is_initialized():
        dist.barrier()
    return target


def _write_tokens(text: Path, tokenizer: Path, target: Path) -> None:
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise InputError("tokenizer", str(tokenizer), "reading it needs the package tokenizers") from missing
    try:
        found = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises plain exceptions
        raise InputError("tokenizer", str(tokenizer), f"expected a tokenizer.json ({error})") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".part{os.getpid()}")
    with part.open("wb") as file:
        for pieces in _pieces(text):
            for encoded in found.encode_batch(pieces, add_special_tokens=False):
                file.write(np.asarray(encoded.ids, dtype=np.uint32).tobytes())
    part.replace(target)


def _pieces(text: Path) -> Iterator[list[str]]:
    """The text in lists of pieces that end at line breaks."""
    pieces: list[str] = []
    with text.open(encoding="utf-8", errors="strict") as file:
        while lines := file.readlines(_TEXT_BYTES):
            pieces.append("".join(lines))
            if len(pieces) == _BATCH:
                yield pieces
                pieces = []
    if pieces:
        yield pieces
