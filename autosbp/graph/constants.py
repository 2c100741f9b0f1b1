"""The bytes of a constant as text: base64 of zlib of its values, row-major and little-endian."""

from __future__ import annotations

import base64
import zlib

from autosbp.errors import GraphError


def encode_bytes(data: bytes) -> str:
    """Bytes of a constant as text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def decode_bytes(text: str, num_bytes: int, path: str = "data") -> bytes:
    """The inverse of ``encode_bytes``; never inflates beyond ``num_bytes`` + 1."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), num_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise GraphError(f"{path}.data", text[:40], f"base64 of zlib data is expected ({error})") from None
