"""A reverse proxy on a free loopback port that has a service below a path, beside another site."""

from __future__ import annotations

import http.client
from contextlib import closing, suppress
from urllib.parse import urlsplit

from tests.service.side_server import Quiet, SideServer

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Proxy(SideServer):
    """``url`` is where the service is for its callers; ``strips`` is whether the proxy takes the path away, as nginx does for
    ``proxy_pass`` with a path. ``outside`` are requests that missed the path."""

    def __init__(self, root: str, service_url: str, *, strips: bool) -> None:
        self.outside: list[str] = []
        proxy, to = self, urlsplit(service_url)

        class Handler(Quiet):
            def _pass(self) -> None:
                path = self.path
                if urlsplit(path).path != root and not path.startswith(f"{root}/"):
                    proxy.outside.append(path)
                    self.send_error(404)
                    return
                if strips:
                    path = path.removeprefix(root)
                    path = path if path.startswith("/") else f"/{path}"
                length = int(self.headers.get("content-length", "0"))
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                headers |= {"host": self.headers["host"], "x-forwarded-for": self.client_address[0]}
                body = self.rfile.read(length) if length else None
                connection = http.client.HTTPConnection(str(to.hostname), to.port or 80, timeout=120)
                with closing(connection), suppress(ConnectionError):  # a browser leaves what it does not want any more
                    connection.request(self.command, path, body, headers)
                    with connection.getresponse() as answer:
                        self._answer(answer)

            def _answer(self, answer: http.client.HTTPResponse) -> None:
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.end_headers()
                while part := answer.read1():
                    self.wfile.write(part)

            do_GET = do_HEAD = do_POST = do_DELETE = _pass

        super().__init__(Handler)
        self.url += root
