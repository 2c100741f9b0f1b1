"""Text encoding of a constant: base64 of the zlib-compressed values, row-major and little-endian."""

from __future__ import annotations

import base64
import zlib

from autosbp.errors import GraphError


def encode_bytes(data: bytes) -> str:
    """Encode the bytes of a constant as text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def decode_bytes(text: str, num_bytes: int, path: str = "data") -> bytes:
    """Inverse of ``encode_bytes``; decompresses at most ``num_bytes`` + 1 bytes."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), num_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise GraphError(f"{path}.data", text[:40], f"expected base64 of zlib data ({error})") from None
