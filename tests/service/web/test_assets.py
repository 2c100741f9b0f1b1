"""Static files: what was fetched from elsewhere is what it was, and browsers keep all of them."""

from __future__ import annotations

import hashlib
import re

import pytest
from starlette.testclient import TestClient

from autosbp.service.web import assets
from autosbp.service.web.assets import ROOT, asset_url

VENDOR = ROOT / "vendor"


def test_vendored_files_are_those_of_the_checksums_and_no_others() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    named = dict(reversed(line.split(maxsplit=1)) for line in lines)  # type: ignore[misc]
    there = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*") if path.is_file()}
    assert named.keys() == there.keys() - {"SHA256SUMS"}
    for name, digest in named.items():
        assert hashlib.sha256(there[name].read_bytes()).hexdigest() == digest, name


def test_every_vendored_package_has_its_licence() -> None:
    for folder in VENDOR.iterdir():
        if folder.is_dir():
            assert (folder / "LICENSE").read_text().strip(), folder


@pytest.mark.parametrize("name", sorted(assets.assets()))
def test_a_file_is_served_with_its_type_for_good_and_known_by_its_tag(shared: TestClient, name: str) -> None:
    answer = shared.get(asset_url(name))
    assert (answer.status_code, answer.content) == (200, (ROOT / name).read_bytes())
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].partition(";")[0] != "application/octet-stream"
    again = shared.get(asset_url(name), headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_file_of_another_version_is_asked_for_again_next_time(shared: TestClient) -> None:
    assert shared.get("/static/older/style.css").headers["cache-control"] == "public, no-cache"


def test_large_texts_are_sent_compressed_to_whoever_takes_them(shared: TestClient) -> None:
    name = "vendor/echarts-6.1.0/echarts.min.js"
    packed = shared.get(asset_url(name), headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and packed.headers["vary"] == "accept-encoding"
    plain = shared.get(asset_url(name), headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.content == packed.content


@pytest.mark.parametrize("name", ["../route.py", "%2e%2e/route.py", "none.css", "vendor", "vendor/../../route.py"])
def test_only_vendored_and_own_assets_are_served(shared: TestClient, name: str) -> None:
    assert shared.get(f"/static/{assets.version()}/{name}").status_code == 404


def test_the_style_sheet_names_files_that_are_there() -> None:
    for name in re.findall(r'url\("([^"]+)"\)', (ROOT / "style.css").read_text()):
        assert (ROOT / name).is_file(), name
