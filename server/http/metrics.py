"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from server.control.load_watch import LoadWatch
from server.http.metric_families import metrics_of


class _Collected(Collector):
    """Families that were made before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def metric_routes(watch: LoadWatch) -> APIRouter:
    """The route that Prometheus scrapes."""
    router = APIRouter(tags=["operations"])

    @router.get("/metrics")
    async def metrics() -> Response:
        """All metrics in Prometheus' text format."""
        snapshot = await watch.snapshot(details=True)
        text = generate_latest(_Collected(metrics_of(snapshot)))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router
