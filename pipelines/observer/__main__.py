"""`python -m pipelines.observer`: runs until SIGTERM or SIGINT, then writes what it holds."""

import asyncio
import signal
import sys

import click

from pipelines.observer import streams, web
from pipelines.observer.service import Observer
from resources.store import S3Store


@click.command(help=__doc__)
@click.option("--access-port", type=int, required=True, help="Where Envoy sends its access log with the bodies (gRPC).")
@click.option("--http-port", type=int, required=True, help="/healthz, /metrics, /status, /completeness, /flush.")
@click.option("--envoy-admin", required=True, help="URL of Envoy's admin interface.")
@click.option("--s3-endpoint", default=None, help="URL of the object store; AWS itself without one.")
@click.option("--bucket", default="trimtab", show_default=True)
@click.option("--event-time-header", default=None, help="Request header that gives the event time (ISO 8601 with Z).")
@click.option(
    "--flush-s", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds a row is held."
)
def main(
    access_port: int,
    http_port: int,
    envoy_admin: str,
    s3_endpoint: str | None,
    bucket: str,
    event_time_header: str | None,
    flush_s: float,
) -> None:
    observer = Observer(S3Store(bucket, s3_endpoint), envoy_admin, event_time_header, flush_s)
    try:
        asyncio.run(_run(observer, access_port, http_port))
    except OSError as error:
        sys.exit(f"observer: {error}: is another one running?")
    except RuntimeError as error:
        sys.exit(f"observer: {error}")


async def _run(observer: Observer, access_port: int, http_port: int) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    observer.prepare()
    server = await streams.serve(observer.inbox, access_port)
    observer.start()
    http = web.serve(observer, http_port)
    await stopped.wait()
    await server.stop(0.2)
    await asyncio.to_thread(observer.stop)
    http.shutdown()


if __name__ == "__main__":
    main()
