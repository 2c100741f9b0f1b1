"""Static files, read once. Their URLs contain a digest of all files, so that browsers may cache them forever."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from autosbp.service.http.etags import etag, matches_if_none_match
from autosbp.service.problem_details import not_found

ROOT = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    "": "text/plain; charset=utf-8",
}
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_REVALIDATE = "public, no-cache"
_SMALL = 1024
_DIGITS = 16
routes = APIRouter(prefix="/static", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file; ``packed`` is its gzip form, None if compression gains nothing."""

    body: bytes
    packed: bytes | None
    media_type: str
    tag: str


@cache
def assets() -> Mapping[str, Asset]:
    """All files by their path below ``static``."""
    return {path.relative_to(ROOT).as_posix(): _read(path) for path in sorted(ROOT.rglob("*")) if path.is_file()}


@cache
def version() -> str:
    """Digest of all files."""
    text = "".join(f"{name} {asset.tag}\n" for name, asset in assets().items())
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def asset_url(name: str) -> str:
    """URL of a file; raise ``KeyError`` if there is none."""
    assets()[name]
    return f"/static/{version()}/{name}"


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    packs = path.suffix != ".woff2" and len(body) > _SMALL
    return Asset(
        body,
        gzip.compress(body, mtime=0) if packs else None,
        _TYPES.get(path.suffix, _TYPES[""]),
        hashlib.sha256(body).hexdigest()[:_DIGITS],
    )


@routes.get("/{release}/{name:path}")
async def static(request: Request, release: str, name: str) -> Response:
    """Return a file, without authentication: the sign-in page needs them."""
    asset = assets().get(name)
    if asset is None:
        raise not_found("file", name)
    headers = {
        "cache-control": _CACHE_FOREVER if release == version() else _REVALIDATE,
        "etag": etag(asset.tag),
        "vary": "accept-encoding",
    }
    if matches_if_none_match(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=304, headers=headers)
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
