"""MLflow: one worker, runs in PostgreSQL, artifacts in S3 through the server, so clients need no S3 keys."""

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from resources.errors import StackError
from resources.local.part import Part, inherited
from resources.local.ports import HOST
from resources.local.probes import fetch, post

NAME = "mlflow"
PORTS = {"http": 5000}
DATABASE = "mlflow"


def part(
    ports: Mapping[str, int],
    database: str,
    bucket: str,
    s3: Mapping[str, str],
    s3_endpoint: str,
    after: tuple[str, ...],
) -> Part:
    """The tracking server. database: SQLAlchemy address; s3: credentials as AWS_* variables."""
    url = f"http://{HOST}:{ports['http']}"
    return Part(
        name=NAME,
        command=(
            sys.executable,
            "-m",
            "mlflow",
            "server",
            f"--host={HOST}",
            f"--port={ports['http']}",
            "--workers=1",
            f"--artifacts-destination=s3://{bucket}/mlflow",
        ),
        ready=partial(_ready, url),
        address=url,
        ports=ports,
        after=after,
        environment=inherited()
        | dict(s3)
        | {
            # In the environment, not in the arguments: it holds the password.
            "MLFLOW_BACKEND_STORE_URI": database,
            "MLFLOW_S3_ENDPOINT_URL": s3_endpoint,
            # Seven more processes and 900 MB for jobs that nothing here submits.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "GIT_PYTHON_REFRESH": "quiet",
        },
        grace_s=5,
    )


def _ready(url: str, _started: datetime) -> None:
    """It is healthy, and its database answers a search."""
    said = fetch(f"{url}/health")
    if said.strip() != b"OK":
        raise StackError(f"{NAME}: {url}/health says {said[:80]!r}")
    post(f"{url}/api/2.0/mlflow/experiments/search", {"max_results": 1})
