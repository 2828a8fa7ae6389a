"""Choice of a predictor's architecture, by the loss on held-out labels."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError
from teacher.reward.building import Architecture
from teacher.reward.fitting import FitBudget, Progress
from teacher.reward.learner import EnsembleLearner
from teacher.reward.report import FitReport
from teacher.settings.options import RewardConfig

CLEAR_GAIN = 0.06  # nats per held-out label; smaller gains can be chance if labels are few or noisy
TRIED_ON = 1000  # maximum number of labels; more take longer and give the same choice
LINEAR = Architecture("linear", "even")
TO_CONVERGENCE = FitBudget(updates=10_000)
_BETTER = "because they predict held-out labels clearly better"
_FEWEST_FOR_FEATURES = 40  # labels; with fewer, gains by chance are often larger than CLEAR_GAIN
_FEWEST_FOR_NETWORKS = 250  # labels; with fewer, networks are hardly ever better than linear models


@dataclass(frozen=True)
class Chosen:
    """The best of several architectures.

    Attributes:
        learner: the learner with this architecture, fitted to convergence.
        report: report on its fit.
        updates: updates made in the fits of all networks.
    """

    learner: EnsembleLearner
    report: FitReport
    updates: int


def architectures(config: RewardConfig, *, has_built_in: bool) -> tuple[Architecture, ...]:
    """Return the architectures that a predictor chooses from, beginning with the one it starts with.

    Args:
        config: settings of the predictor.
        has_built_in: False if observations are images or networks are custom, which have no linear models
            and no squares or logarithms.

    Raises:
        ConfigError: the settings ask for an architecture that doesn't exist.
    """
    if not has_built_in:
        for option, value, other in (("features", "even", "plain"), ("model", "linear", "network")):
            if getattr(config, option) == value:
                raise ConfigError(
                    f"--reward.{option}={value} can't be used with images or custom networks; use {other} or "
                    "auto"
                )
        return (Architecture("network", "plain"),)
    linear = (LINEAR,) if config.may_be_linear else ()
    networks = tuple(
        Architecture("network", features)
        for features in ("plain", "even")
        if config.features in ("auto", features)
    )
    return linear if config.model == "linear" else linear + networks


def fewest_labels(first: Architecture, tried: int) -> int:
    """Return the number of labels at which other architectures than ``first`` are tried next.

    Args:
        first: the architecture in use.
        tried: number of labels at the last trial; 0 if there was none.
    """
    return max(2 * tried, _FEWEST_FOR_NETWORKS) if first.is_linear else _FEWEST_FOR_FEATURES


def choose(
    untrained: Sequence[EnsembleLearner], dataset: PreferenceDataset, progress: Progress | None
) -> Chosen:
    """Fit each learner to convergence and return the best, or an earlier one if the gain isn't clear.

    A fit that diverged is worse than all others.

    Args:
        untrained: one learner for each architecture, the preferred one first.
        dataset: the preferences.
        progress: called with the number of updates made so far in the fits of networks.
    """
    updates, fitted = 0, list[Chosen]()
    for learner in untrained:
        report = learner.fit(dataset, TO_CONVERGENCE, counting_from(updates, progress))
        updates += 0 if learner.architecture.is_linear else report.updates
        fitted.append(Chosen(learner, report, updates))
    best = functools.reduce(lambda best, each: each if _is_better(each.report, best.report) else best, fitted)
    return replace(best, updates=updates)


def _is_better(report: FitReport, rival: FitReport) -> bool:
    if report.diverged:
        return False
    return rival.diverged or rival.order_loss - report.order_loss >= CLEAR_GAIN


def message(chosen: Architecture, *, was_linear: bool) -> str:
    """Return a message about chosen networks for the user; empty if the predictor started with them."""
    if was_linear:
        return f"The predictor now uses networks instead of linear models, {_BETTER}."
    if chosen.features == "even":
        return f"The predictor now uses squares and logarithms of its inputs too, {_BETTER}."
    return ""


def counting_from(made: int, progress: Progress | None) -> Progress | None:
    """Wrap ``progress`` to add ``made`` to the count it receives; return None if ``progress`` is None."""
    return None if progress is None else lambda updates: progress(made + updates)
