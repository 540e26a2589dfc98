"""SeaweedFS: S3 on one machine, with conditional writes as S3 has them."""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from resources.errors import StackError
from resources.local.keys import Keys, write_private
from resources.local.part import Part, inherited
from resources.local.ports import HOST

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NAME = "s3"
PORTS = {"api": 8333, "grpc": 8334, "master": 8335, "master-grpc": 8336, "volume": 8337, "volume-grpc": 8338} | {
    "filer": 8339,
    "filer-grpc": 8340,
}
# SeaweedFS puts them there whatever TMPDIR says, and leaves them when it is killed.
SOCKETS = "/tmp/seaweedfs-{}-{}.sock"
SOCKET_PORTS = {"s3": "api", "s3-grpc": "grpc", "master-grpc": "master-grpc", "volume-grpc": "volume-grpc"} | {
    "filer": "filer",
    "filer-grpc": "filer-grpc",
}
PROBE = "probe/readiness"


def part(servers: Path, home: Path, ports: Mapping[str, int], keys: Keys, bucket: str) -> Part:
    """S3 with one identity and one bucket. ports: as `PORTS`."""
    data, identities = home / "data" / NAME, home / "keys" / "s3.json"
    endpoint = f"http://{HOST}:{ports['api']}"
    return Part(
        name=NAME,
        command=(str(_binary(servers)), *_arguments(data, identities, ports)),
        ready=partial(_ready, endpoint, keys),
        address=endpoint,
        ports=ports,
        environment=inherited(),
        prepare=partial(_prepare, data, identities, keys),
        settle=partial(_ensure_bucket, endpoint, keys, bucket),
        prime=partial(client, endpoint, keys),
        # It answers no more but waits 15 s for its own streams; every write is with the kernel already.
        grace_s=2,
        leftovers=tuple(SOCKETS.format(name, ports[port]) for name, port in SOCKET_PORTS.items()),
    )


@cache
def client(endpoint: str, keys: Keys) -> "S3Client":
    """A client that says no soon, with the stack's own credentials whatever the caller's environment holds."""
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"max_attempts": 1},
        connect_timeout=3,
        read_timeout=3,
        proxies={},
        request_checksum_calculation="when_required",
    )
    session = boto3.session.Session(keys.s3_access, keys.s3_secret, region_name="us-east-1")
    return session.client("s3", endpoint_url=endpoint, config=config)


def _binary(servers: Path) -> Path:
    binary = servers / "bin" / "weed"
    if not binary.is_file():
        raise StackError(f"{NAME}: {binary} is missing: run `make setup`")
    return binary


def _arguments(data: Path, identities: Path, ports: Mapping[str, int]) -> list[str]:
    return [
        "server",
        f"-dir={data}",
        f"-ip={HOST}",
        "-s3",
        f"-s3.config={identities}",
        f"-s3.port={ports['api']}",
        f"-s3.port.grpc={ports['grpc']}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # One master needs no election: up a second sooner.
        "-master.peers=none",
        f"-master.port={ports['master']}",
        f"-master.port.grpc={ports['master-grpc']}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        # As many volumes as the disk holds: the default of 8 is full after 512 MB.
        "-volume.max=0",
        "-volume.preStopSeconds=0",
        f"-volume.port={ports['volume']}",
        f"-volume.port.grpc={ports['volume-grpc']}",
        f"-filer.port={ports['filer']}",
        f"-filer.port.grpc={ports['filer-grpc']}",
    ]


def _prepare(data: Path, identities: Path, keys: Keys) -> None:
    data.mkdir(parents=True, exist_ok=True)
    identity = {
        "name": "trimtab",
        "credentials": [{"accessKey": keys.s3_access, "secretKey": keys.s3_secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    write_private(identities, json.dumps({"identities": [identity]}))


def _ready(endpoint: str, keys: Keys, started: datetime) -> None:
    """An object goes in and comes out."""
    s3, body, bucket = client(endpoint, keys), started.isoformat().encode(), "trimtab-probe"
    _ensure_bucket(endpoint, keys, bucket)
    s3.put_object(Bucket=bucket, Key=PROBE, Body=body)
    found = s3.get_object(Bucket=bucket, Key=PROBE)["Body"].read()
    if found != body:
        raise StackError(f"{NAME}: {endpoint} gave back {found!r} for {body!r}")


def _ensure_bucket(endpoint: str, keys: Keys, bucket: str) -> None:
    s3 = client(endpoint, keys)
    if bucket not in [found["Name"] for found in s3.list_buckets().get("Buckets", [])]:
        s3.create_bucket(Bucket=bucket)
