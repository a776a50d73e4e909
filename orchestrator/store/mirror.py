"""Stores in object storage, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`: the bucket is the store, read through a copy.

Every machine keeps a copy in its cache, so that all that reads files reads the same ones as in a local store. What is
written goes to the bucket first; a chunk is committed by a write that the bucket refuses where the name is taken
(If-None-Match). Copies below compact/, drafts, engine logs, the event log and crash reports stay on their machine.
Credentials and endpoint come from the environment, as for every client of the provider (AWS_..., GOOGLE_...).
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.environment import cache_dir
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs")
# pathlib turns s3://bucket into s3:/bucket, and every option of ours that names a store is a path.
_URL = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,2}}([^/].*)")
MARK = ".mirror"
_LOCAL = frozenset({"tmp", "compact", MARK})
_LOCAL_OF_CAMPAIGN = frozenset({"logs", "crashes", "events.jsonl"})
_AT_ONCE = 16
_SECONDS = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A bucket's prefix and its copy below `root`. Methods raise OSError where the bucket does not answer.

    endpoint  address of the service; empty for the provider's own
    """

    root: Path
    url: str
    endpoint: str = ""

    def create(self, target: Path, draft: Path) -> bool:
        """Send `draft` under the name of `target` unless the bucket has that name: then False."""
        from obstore import put  # noqa: PLC0415  as in _client
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        with _errors(self.url):
            try:
                put(_client(self.url, self.endpoint), self._key(target), draft.read_bytes(), mode="create")
            except AlreadyExistsError:
                # Also where our own first try got through and only its answer was lost: the rows are there either way.
                return False
        return True

    def replace(self, target: Path, draft: Path) -> None:
        """Send `draft` under the name of `target`, whatever the bucket has there."""
        from obstore import put  # noqa: PLC0415  as in _client

        with _errors(self.url):
            put(_client(self.url, self.endpoint), self._key(target), draft.read_bytes())

    def remove(self, target: Path) -> None:
        """Delete an object, or all below a name; none is fine."""
        from obstore import delete  # noqa: PLC0415  as in _client

        with _errors(self.url):
            for key in list(self._listed(self._key(target))) or [self._key(target)]:
                with suppress(FileNotFoundError):
                    delete(_client(self.url, self.endpoint), key)

    def fetch(self, target: Path) -> None:
        """Bring one file of the copy up to date; removed where the bucket has no such object."""
        from obstore import get  # noqa: PLC0415  as in _client
        from obstore.exceptions import NotFoundError  # noqa: PLC0415

        with _errors(self.url):
            try:
                found = get(_client(self.url, self.endpoint), self._key(target))
                data = bytes(found.bytes())
            except (NotFoundError, FileNotFoundError):
                target.unlink(missing_ok=True)
                return
        modified = found.meta["last_modified"].timestamp()
        # An equal file keeps its place, so that readers see no change.
        if not target.exists() or target.read_bytes() != data:
            draft = self.root / "tmp" / f"{target.stem}.{uuid.uuid4().hex}.inprogress"
            draft.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.replace(target)
        with suppress(FileNotFoundError):
            os.utime(target, (modified, modified))

    def names(self, directory: Path) -> list[Path]:
        """Files below a directory by the bucket's word, sorted; the copy may lack them."""
        with _errors(self.url):
            return sorted(self.root / key for key in self._listed(self._key(directory)))

    def pull(self, directory: Path) -> None:
        """Bring the copy up to date below a directory: fetch what is new or newer, drop what has gone."""
        with _errors(self.url):
            started = _clock(self.root)
            listed = {self.root / key: meta for key, meta in self._listed(self._key(directory)).items()}
        stale = [path for path, meta in listed.items() if _stale(path, meta)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.fetch, stale))
        for path in directory.rglob("*") if directory.is_dir() else ():
            with suppress(FileNotFoundError):
                # What this machine has committed since the listing began is not in it.
                if self.shared(path) and path not in listed and path.is_file() and path.stat().st_ctime < started:
                    path.unlink()

    def shared(self, path: Path) -> bool:
        """Whether a file of the copy is also in the bucket."""
        top, *below = path.relative_to(self.root).parts
        return top not in _LOCAL and not (top == "campaigns" and not _LOCAL_OF_CAMPAIGN.isdisjoint(below[1:2]))

    def _listed(self, prefix: str) -> dict[str, Any]:
        from obstore import list as list_objects  # noqa: PLC0415  as in _client

        pages = list_objects(_client(self.url, self.endpoint), prefix=prefix or None)
        found = {str(meta["path"]): meta for page in pages for meta in page}
        return {key: meta for key, meta in found.items() if self.shared(self.root / key)}

    def _key(self, path: Path) -> str:
        key = path.relative_to(self.root).as_posix()
        return "" if key == "." else key


_MOUNTS: dict[Path, Mirror] = {}
"""Mirrors that this process has met, by the root of their copy: empty as long as stores are local."""


def is_url(store: str | Path) -> bool:
    """Whether a store lies in object storage."""
    return _URL.fullmatch(str(store)) is not None


def local(store: Path) -> Path:
    """Where the files of a store are read: `store` itself, or the copy of a bucket. Raises UserError for a bad URL."""
    match = _URL.fullmatch(str(store))
    if match is None:
        mark = store / MARK
        if mark.is_file():
            _MOUNTS.setdefault(store, Mirror(store, mark.read_text(encoding="utf-8").strip(), _endpoint()))
        return store
    url = f"{match[1]}://{match[2].rstrip('/')}"
    # One name at two endpoints is two buckets.
    digest = hashlib.blake2b(f"{url} {_endpoint()}".encode(), digest_size=4).hexdigest()
    root = cache_dir() / "stores" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', url)}-{digest}"
    if root not in _MOUNTS:
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / MARK).write_text(url + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot keep a copy of {url} in {root}: {error}. Set XDG_CACHE_HOME.") from error
        _MOUNTS[root] = Mirror(root, url, _endpoint())
    return root


def of(path: Path) -> Mirror | None:
    """The mirror whose copy holds `path`; None for a local store."""
    return next((mirror for root, mirror in _MOUNTS.items() if root == path or root in path.parents), None)


def pull(directory: Path) -> None:
    """Bring the copy below a directory up to date; nothing for a local store. Raises UserError where that fails."""
    if (mirror := of(directory)) is not None:
        with _refused():
            mirror.pull(directory)


def names(directory: Path) -> list[Path] | None:
    """Files below a directory by the bucket's word; None for a local store. Raises UserError where that fails."""
    if (mirror := of(directory)) is None:
        return None
    with _refused():
        return mirror.names(directory)


def fetch(path: Path) -> Path:
    """The same path, its file up to date; nothing to do for a local store. Raises OSError."""
    if (mirror := of(path)) is not None:
        mirror.fetch(path)
    return path


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL", "")


@lru_cache
def _client(url: str, endpoint: str) -> ObjectStore:
    # Imported where it is needed: a local store never pays for it.
    from obstore.store import from_url  # noqa: PLC0415

    options: dict[str, Any] = {"timeout": _SECONDS, "allow_http": endpoint.startswith("http://")}
    return from_url(url, client_options=options, retry_config={"max_retries": 5, "retry_timeout": _SECONDS})  # type: ignore[call-overload]


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """The client's errors as OSError, which is what a disk that fails raises."""
    from obstore.exceptions import BaseError  # noqa: PLC0415  as in _client

    try:
        yield
    except BaseError as error:
        # Its text goes on with the client's own state, where an environment may hold credentials.
        raise OSError(f"{url} does not answer as it should: {str(error).strip().splitlines()[0][:300]}") from error


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{error}. Rows that are committed are safe; run the same command again.") from error


def _stale(path: Path, meta: Any) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return True
    return bool(status.st_size != meta["size"] or meta["last_modified"].timestamp() > status.st_mtime)


def _clock(root: Path) -> float:
    """Now, by the clock that stamps files of the copy."""
    probe = root / "tmp" / f"clock.{uuid.uuid4().hex}"
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.touch()
    try:
        return probe.stat().st_ctime
    finally:
        probe.unlink()
