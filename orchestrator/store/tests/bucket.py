"""A real S3 service for tests: LocalBucket on loopback, which keeps objects as files and honours If-None-Match by link.

`python -m orchestrator.store.tests.bucket DIRECTORY` serves the buckets in DIRECTORY and prints its address.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path

from localbucket import S3Handler

BUCKET = "rows"
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Handler(S3Handler):
    """With DeleteObjects, the one request of our client that LocalBucket 1.2 lacks."""

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _post_request(self, bucket: str, key: str) -> None:
        if key or "delete" not in self.query:
            super()._post_request(bucket, key)
            return
        wanted = [str(name.text) for name in ET.fromstring(self._read_body()).iter(f"{_XML}Key")]
        result = ET.Element("DeleteResult")
        for name in wanted:
            self._object_path(bucket, name).unlink(missing_ok=True)
            ET.SubElement(ET.SubElement(result, "Deleted"), "Key").text = name
        self._send(HTTPStatus.OK, ET.tostring(result))


class Careless(Handler):
    """A service that does not know If-None-Match, as some do not."""

    def _put(self, bucket: str, key: str) -> None:
        del self.headers["If-None-Match"]
        super()._put(bucket, key)


@contextmanager
def served(directory: Path, kind: str = "Handler") -> Iterator[dict[str, str]]:
    """A service in a process of its own with one bucket, as long as this lasts; yields its clients' environment."""
    (directory / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __name__, str(directory / "objects"), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "checks",
            "AWS_REGION": "us-east-1",
            "XDG_CACHE_HOME": str(directory / "cache"),
        }
    finally:
        process.kill()
        process.wait()


def main(directory: str, kind: str = "Handler") -> None:
    """Serve until killed."""
    handler = {"Handler": Handler, "Careless": Careless}[kind]
    handler.data_root = Path(directory)
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
