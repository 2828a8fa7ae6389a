"""Site metrics in Prometheus' text format. Needs prometheus_client."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from human_feedback_site.feedback.selectors.metrics import current_figures

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_COUNTERS = {
    "labels": "Valid labels given, including withdrawn ones.",
    "withdrawn_labels": "Labels that were withdrawn.",
    "decisions": "Decisions in the feed.",
}
_GAUGES = {
    "live_leases": "Leases that are neither answered nor expired.",
    "open_comparisons": "Comparisons that still need labels.",
    "oldest_open_comparison_seconds": "Age of the oldest open comparison; 0 if none is open.",
    "awaited_labels": "Labels that training is waiting for; 0 if it isn't waiting or is paused.",
    "trainer_silence_seconds": "Time since the trainer's last request.",
    "feed_lag_decisions": "Decisions that the trainer has not read yet.",
    "labelers_below_chance": "Labelers who are wrong more often than right and were not stopped.",
}


class _ExperimentCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        """Yield each metric with one sample per experiment; unknown figures have no sample."""
        figures = current_figures()
        for kind, texts in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, text in texts.items():
                family = kind(f"rl_teacher_{name}", text, labels=["experiment"])
                for experiment, values in figures.items():
                    if (value := values[name]) is not None:
                        family.add_metric([experiment], value)
                yield family


def exposition() -> bytes:
    """Return all current metrics."""
    registry = CollectorRegistry()
    registry.register(_ExperimentCollector())
    return generate_latest(registry)
