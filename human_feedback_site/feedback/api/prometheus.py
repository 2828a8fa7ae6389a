"""Site metrics in Prometheus' text format. Needs prometheus_client."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from human_feedback_site.feedback.selectors.metrics import Figures, current_figures

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_COUNTERS = {
    "rl_teacher_labels": ("labels", "Valid labels given, including withdrawn ones."),
    "rl_teacher_withdrawn_labels": ("withdrawn_labels", "Labels that were withdrawn."),
    "rl_teacher_decisions": ("decisions", "Decisions in the feed."),
}
_GAUGES = {
    "rl_teacher_live_leases": ("live_leases", "Leases that are neither answered nor expired."),
    "rl_teacher_open_comparisons": ("open_comparisons", "Comparisons that still need labels."),
    "rl_teacher_oldest_open_comparison_seconds": (
        "oldest_open_seconds",
        "Age of the oldest open comparison; 0 if none is open.",
    ),
    "rl_teacher_awaited_labels": (
        "awaited_labels",
        "Labels that training is waiting for; 0 if it isn't waiting or is paused.",
    ),
    "rl_teacher_trainer_silence_seconds": (
        "trainer_silence_seconds",
        "Time since the trainer's last request.",
    ),
    "rl_teacher_feed_lag_decisions": ("feed_lag", "Decisions that the trainer has not read yet."),
    "rl_teacher_labelers_below_chance": (
        "labelers_below_chance",
        "Labelers who are wrong more often than right and were not stopped.",
    ),
}


class _ExperimentCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        """Yield each metric with one sample per experiment; unknown figures have no sample."""
        figures = current_figures()
        for name, (field, text) in _COUNTERS.items():
            yield _filled(CounterMetricFamily(name, text, labels=["experiment"]), field, figures)
        for name, (field, text) in _GAUGES.items():
            yield _filled(GaugeMetricFamily(name, text, labels=["experiment"]), field, figures)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, field: str, figures: list[Figures]
) -> CounterMetricFamily | GaugeMetricFamily:
    for each in figures:
        value = getattr(each, field)
        if value is not None:
            family.add_metric([each.experiment], value)
    return family


def exposition() -> bytes:
    """Return all current metrics."""
    registry = CollectorRegistry()
    registry.register(_ExperimentCollector())
    return generate_latest(registry)
