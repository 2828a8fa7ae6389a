"""Choice of a predictor's architecture, by the loss on held-out labels."""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError
from teacher.reward.building import Architecture
from teacher.reward.fitting import FitBudget, Progress
from teacher.reward.learner import FULL_SIZE, EnsembleLearner
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
        updates: updates made in the fits of all networks.
    """

    learner: EnsembleLearner
    report: FitReport
    updates: int


def architectures(config: RewardConfig, *, has_built_in: bool, own_loss: bool) -> tuple[Architecture, ...]:
    """Return the architectures that a predictor chooses from, beginning with the one it starts with.

    Args:
        has_built_in: False if observations are images or networks are custom, which have no linear models
            and no squares or logarithms.
        own_loss: True if the loss is custom, which linear models can't minimize.
    """
    if not has_built_in:
        for option, value, other in (("features", "even", "plain"), ("model", "linear", "network")):
            if getattr(config, option) == value:
                raise ConfigError(
                    f"--reward.{option}={value} can't be used with images or custom networks; use {other} or "
                    "auto"
                )
        return (Architecture("network", "plain"),)
    if own_loss and config.model == "linear":
        raise ConfigError("--reward.model=linear can't be used with a custom loss; use network or auto")
    linear = (LINEAR,) if config.may_be_linear and not own_loss else ()
    networks = tuple(
        Architecture("network", features)
        for features in ("plain", "even")
        if config.features in ("auto", features)
    )
    return linear if config.model == "linear" else linear + networks


class ModelChoice:
    """A predictor's choice between linear models and networks, and between plain and even networks.

    Linear models are compared with networks at 250 labels, and again whenever the labels have doubled. With
    ``features="auto"``, plain networks are compared with even ones at the same time, or without linear models
    in the first fit if it has 40 or more labels. Once networks were chosen or fitted, the choice is final.

    Raises:
        ConfigError: the settings ask for an architecture that doesn't exist.
    """

    def __init__(self, config: RewardConfig, *, has_built_in: bool, own_loss: bool) -> None:
        self._candidates = architectures(config, has_built_in=has_built_in, own_loss=own_loss)
        self._has_built_in = has_built_in
        # A saved model may be linear although these settings choose networks: defaults can change.
        self._loads_linear = has_built_in and not own_loss and config.model == "auto"
        self.current = self._candidates[0]
        self._is_final = len(self._candidates) == 1
        self._compared_at = 0  # labels in the last comparison

    @property
    def features(self) -> str:
        """Return ``plain`` or ``even``, or ``auto`` until a network's first fit chooses one of them."""
        return self.current.features if self._is_final or self.current.is_linear else "auto"

    def fit(
        self,
        learner: EnsembleLearner,
        dataset: PreferenceDataset,
        effort: FitBudget,
        progress: Progress | None,
    ) -> tuple[EnsembleLearner, FitReport]:
        """Fit a learner, or compare it with others if that is due; return the best and the report on its fit.

        Args:
            progress: called with the number of updates made so far, those of a comparison included.
        """
        is_linear = self.current.is_linear
        due_at = max(2 * self._compared_at, _FEWEST_FOR_NETWORKS) if is_linear else _FEWEST_FOR_FEATURES
        if not self._is_final and dataset.labels >= due_at and not (is_linear and effort.is_empty):
            return self._compare(learner, dataset, effort, progress)
        self._is_final = self._is_final or not is_linear
        return learner, learner.fit(dataset, effort, progress)

    def _compare(
        self,
        learner: EnsembleLearner,
        dataset: PreferenceDataset,
        effort: FitBudget,
        progress: Progress | None,
    ) -> tuple[EnsembleLearner, FitReport]:
        """Choose the architecture that predicts held-out labels best, then fit it as requested."""
        some = dataset.sample(TRIED_ON)
        chosen = choose([learner.untrained(each) for each in self._candidates], some, progress)
        was_linear, self.current = self.current.is_linear, chosen.learner.architecture
        self._compared_at, self._is_final = dataset.labels, not self.current.is_linear
        rest = _counting_from(chosen.updates, progress)
        if self.current.is_linear:
            return learner, learner.fit(dataset, effort, rest)
        if was_linear:
            effort = TO_CONVERGENCE  # like the first fit of networks
        best, report = chosen.learner, chosen.report
        if len(some) < len(dataset) or report.updates > (effort.updates or 0):
            untrained = learner.untrained(self.current)
            report = untrained.fit(dataset, effort, rest)
            best = best if report.diverged else untrained
        return best, replace(report, choice=message(self.current, was_linear=was_linear))

    def state_dict(self) -> dict[str, Any]:
        """Return the model and features in use, and the number of labels in the last comparison."""
        return {"model": self.current.model, "features": self.features, "tried": self._compared_at}

    def restored(self, state: Mapping[str, Any]) -> "ModelChoice":
        """Return the choice saved in a predictor's state; earlier versions saved no model and no features.

        Raises:
            TypeError, ValueError: the state was saved with other settings, or is damaged.
        """
        features, model = str(state.get("features", self.features)), state.get("model", self.current.model)
        known = (*self._candidates, LINEAR) if self._loads_linear else self._candidates
        matching = [each for each in known if model == each.model and features in ("auto", each.features)]
        if not matching:
            raise ValueError(f"model {model} with {features} features")
        choice, saved = copy.copy(self), matching[0]
        if saved not in self._candidates:
            choice._candidates = (saved, *self._candidates)
        choice._is_final = len(choice._candidates) == 1 or not (saved.is_linear or features == "auto")
        choice._compared_at = int(state.get("tried", 0))
        full_size = not self._has_built_in and bool(state.get(FULL_SIZE, True))
        choice.current = replace(saved, full_size=full_size)
        return choice


def choose(
    untrained: Sequence[EnsembleLearner], dataset: PreferenceDataset, progress: Progress | None
) -> Chosen:
    """Fit each learner to convergence and return the best, or an earlier one if the gain isn't clear.

    A fit that diverged is worse than all others.

    Args:
        untrained: one learner for each architecture, the preferred one first.
        progress: called with the number of updates made so far in the fits of networks.
    """
    updates, fitted = 0, list[Chosen]()
    for learner in untrained:
        report = learner.fit(dataset, TO_CONVERGENCE, _counting_from(updates, progress))
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


def _counting_from(made: int, progress: Progress | None) -> Progress | None:
    return None if progress is None else lambda updates: progress(made + updates)
