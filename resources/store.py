"""The object store: S3 through boto3, nothing else.

Objects are immutable (If-None-Match); the few mutable pointers move by compare-and-swap (If-Match).
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from resources.errors import Conflict, NotFound, StoreError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


_CHUNK = 1 << 20
# Below it lies, for each object that travelled in parts, the digest of what may become it.
CLAIMS = "claims/"


@dataclass(frozen=True, slots=True)
class Pointer:
    """A mutable object's bytes and the etag that the next swap must present."""

    body: bytes
    etag: str


class Store(Protocol):
    """What rooms and agents ask of a store. Keys are '/'-separated; errors are `StoreError`s."""

    def put(self, key: str, body: bytes) -> None:
        """Write once. The same bytes again are harmless; other bytes raise `Conflict`."""

    def put_file(self, key: str, path: Path) -> None:
        """As `put`, from a file of any size that need not fit into memory."""

    def get(self, key: str) -> bytes:
        """The object's bytes; `NotFound` without one."""

    def fetch(self, key: str, path: Path) -> None:
        """The object's bytes into a file; `NotFound` without one, and no file then."""

    def keys(self, prefix: str, after: str = "") -> list[str]:
        """Keys under a prefix in lexical order, those later than `after` only."""

    def pointer(self, key: str) -> Pointer | None:
        """The mutable object under key, None while it was never written."""

    def swap(self, key: str, body: bytes, etag: str | None) -> str:
        """Replace the pointer that still has `etag` (None: that does not exist yet); its new etag.

        `Conflict` when another writer was first: read again, decide again.
        """


@dataclass(frozen=True)
class S3Store:
    """The store on any S3. Credentials come from boto3's own chain, never from here."""

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    part_bytes: int = 64 << 20
    """Files above it travel in parts of this size, at least S3's 5 MiB."""

    @cached_property
    def client(self) -> "S3Client":
        import boto3
        from botocore.config import Config

        # Adaptive retries would hide a dead store for minutes; three tries tell a blip from an outage.
        config = Config(
            retries={"max_attempts": 3, "mode": "standard"},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=32,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # A session of its own: boto3's default one keeps the credentials of the first store that asked.
        session = boto3.session.Session(region_name=self.region)
        return session.client("s3", endpoint_url=self.endpoint, config=config)

    def ensure_bucket(self) -> None:
        """Create the bucket unless it is there."""
        with _mapped(self.bucket):
            names = [b["Name"] for b in self.client.list_buckets().get("Buckets", [])]
            if self.bucket not in names:
                self.client.create_bucket(Bucket=self.bucket)

    def put(self, key: str, body: bytes) -> None:
        try:
            with _mapped(key):
                self.client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
        except Conflict:
            if self.get(key) != body:
                raise Conflict(f"{key} is immutable and holds other bytes: write under another key") from None

    def get(self, key: str) -> bytes:
        with _mapped(key):
            return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def put_file(self, key: str, path: Path) -> None:
        try:
            with _mapped(key):
                if path.stat().st_size <= self.part_bytes:
                    with path.open("rb") as body:
                        self.client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
                else:
                    self._put_parts(key, path)
        except Conflict as error:
            try:
                held = self._digest(key)
            except NotFound:  # claimed by a writer that has not ended yet
                raise error from None
            if held != _digest_of(path):
                raise Conflict(f"{key} is immutable and holds other bytes: write under another key") from None

    def fetch(self, key: str, path: Path) -> None:
        with _mapped(key):
            body = self.client.get_object(Bucket=self.bucket, Key=key)["Body"]
            with path.open("wb") as file:
                for chunk in body.iter_chunks(_CHUNK):
                    file.write(chunk)

    def _put_parts(self, key: str, path: Path) -> None:
        if self.keys(key)[:1] == [key]:  # gigabytes need not travel to be refused
            raise Conflict(key)
        upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        try:
            parts: list[CompletedPartTypeDef] = []
            with path.open("rb") as file:
                while body := file.read(self.part_bytes):
                    number = len(parts) + 1
                    done = self.client.upload_part(
                        Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body
                    )
                    parts.append({"PartNumber": number, "ETag": done["ETag"]})
            self._claim(key, path)
            self.client.complete_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except BaseException:
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            raise

    def _claim(self, key: str, path: Path) -> None:
        """Settle whose parts become the object, by an object of its own: on that every store is asked for one at a
        time, while of two that complete their parts at once SeaweedFS tells both that they were the first."""
        try:
            self.put(f"{CLAIMS}{key}", _digest_of(path).encode())
        except Conflict as error:
            told = f"another writer is about to write other bytes; if it died, delete {CLAIMS}{key}"
            raise Conflict(f"{key} is immutable: {told}") from error

    def _digest(self, key: str) -> str:
        found = hashlib.sha256()
        with _mapped(key):
            for chunk in self.client.get_object(Bucket=self.bucket, Key=key)["Body"].iter_chunks(_CHUNK):
                found.update(chunk)
        return found.hexdigest()

    def keys(self, prefix: str, after: str = "") -> list[str]:
        found: list[str] = []
        with _mapped(prefix):
            pages = self.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=prefix, StartAfter=after):
                found += [item["Key"] for item in page.get("Contents", [])]
        return sorted(found)

    def pointer(self, key: str) -> Pointer | None:
        try:
            with _mapped(key):
                answer = self.client.get_object(Bucket=self.bucket, Key=key)
                return Pointer(answer["Body"].read(), answer["ETag"])
        except NotFound:
            return None

    def swap(self, key: str, body: bytes, etag: str | None) -> str:
        with _mapped(key):
            if etag is None:
                answer = self.client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
            else:
                answer = self.client.put_object(Bucket=self.bucket, Key=key, Body=body, IfMatch=etag)
            return answer["ETag"]


@contextmanager
def _mapped(key: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "404", "NotFound"):
            raise NotFound(f"{key}: no such object") from error
        if code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
            raise Conflict(f"{key}: another writer was first") from error
        raise StoreError(f"{key}: {error}") from error
    except BotoCoreError as error:
        raise StoreError(f"{key}: {error}: is the object store up?") from error


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
