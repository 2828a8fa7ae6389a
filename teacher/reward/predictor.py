"""Reward predictor: an ensemble of reward models fitted to preferences, with normalized rewards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.preferences import PreferenceDataset
from teacher.data.segments import Segment
from teacher.data.steps import Steps, StepsBatch
from teacher.envs.families import more_specific_id, same_environment
from teacher.errors import ConfigError, DataError, describe_exception
from teacher.reward.building import Architecture
from teacher.reward.choice import (
    LINEAR,
    TO_CONVERGENCE,
    TRIED_ON,
    architectures,
    choose,
    counting_from,
    fewest_labels,
    message,
)
from teacher.reward.devices import working_device
from teacher.reward.features import why_not_finite
from teacher.reward.fitting import FitBudget, Progress
from teacher.reward.images import is_image_space
from teacher.reward.learner import FULL_SIZE, EnsembleLearner, LearnerSpec
from teacher.reward.loss import discounts
from teacher.reward.modules import MakeNetwork
from teacher.reward.portable import PortablePredictor
from teacher.reward.report import FitReport
from teacher.settings.checks import NOT_NEGATIVE, SEED, whole_number
from teacher.settings.options import RewardConfig


class RewardPredictor:
    """Ensemble of reward models that learns the reward of each step from preferences between segments.

    Args:
        observation_space: observation space of a single environment: Box, Discrete or MultiDiscrete. A uint8
            Box with two to four dimensions is treated as images.
        action_space: action space of a single environment: Box, Discrete or MultiDiscrete.
        config: settings of the predictor.
        seed: random seed for initial parameters and minibatches.
        device: name of the torch device, such as ``cuda:0``.
        network: factory called once per ensemble member (see :data:`~teacher.reward.modules.MakeNetwork`);
            None for the built-in reward models.

    Attributes:
        inputs: parts of each step that rewards are predicted from, such as ``next_state``.
        env_id: ID of the environment that the preferences come from; None before the first fit. Set it to
            None to continue with preferences from a different environment with the same spaces.
        own_network: the ``network`` argument; None for built-in reward models.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: RewardConfig,
        seed: int,
        device: str = "cpu",
        network: MakeNetwork | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.env_id: str | None = None
        self.own_network = network
        spec = LearnerSpec(
            observation_space=observation_space,
            action_space=action_space,
            config=config,
            seed=whole_number(seed, "seed", SEED),
            device=working_device(device),
            network=network,
        )
        has_built_in = network is None and not is_image_space(observation_space)
        self._architectures = architectures(config, has_built_in=has_built_in)
        # A saved model may be linear although these settings choose networks: defaults can change.
        self._loads_linear = has_built_in and config.model == "auto"
        self._is_open = len(self._architectures) > 1
        self._tried = 0  # labels when all architectures were last compared
        self._learner = EnsembleLearner(spec, self._architectures[0])
        self.inputs = self._learner.read.inputs

    @property
    def model(self) -> str:
        """Return the kind of reward model in use: ``linear`` or ``network``."""
        return self._learner.architecture.model

    @property
    def members(self) -> int:
        """Return the number of reward models in the ensemble."""
        return self._learner.members

    @property
    def features(self) -> str:
        """Return ``plain``, or ``even`` if squares and logarithms of features are inputs of the models too.

        The value is ``auto`` until a network's first fit chooses one of them.
        """
        architecture = self._learner.architecture
        return "auto" if self._is_open and not architecture.is_linear else architecture.features

    def fit(
        self,
        dataset: PreferenceDataset,
        *,
        max_epochs: int | None = None,
        max_updates: int | None = None,
        progress: Progress | None = None,
    ) -> FitReport:
        """Fit the ensemble to preferences, starting from its current parameters.

        By default, the settings determine the length of the fit. A fit to convergence uses early stopping: it
        ends when the members' held-out losses stop improving, and then restores each member's best
        parameters.

        With ``model="auto"``, linear models are compared with networks at 250 labels, and again whenever the
        dataset has doubled in size. With ``features="auto"``, plain networks are compared with even ones at
        the same time, or with ``model="network"`` in the first fit if it has 40 or more labels. A comparison
        fits all of them to convergence. Networks replace linear models, and even networks plain ones, if they
        predict held-out labels clearly better, or if the others diverge. Then the choice is final.

        If the dataset is empty, the predictor is not changed. If the fit diverges, the last good parameters
        are kept: in a fit to convergence, the best ones found before it diverged, else the parameters from
        before the fit.

        Args:
            dataset: the preferences, at most ``config.max_preferences``.
            max_epochs: fit for this many epochs, regardless of the settings.
            max_updates: fit to convergence with at most this many updates, regardless of the settings. A
                limit above 0 affects neither linear models nor the comparison with networks.
            progress: called with the number of updates made so far in this call, including the comparison;
                called after each update, or less often in a fit to convergence, and with an unchanged number
                before each Newton step of a linear model. If it raises an exception, the fit ends there.

        Raises:
            ConfigError: the dataset exceeds ``max_preferences``, a limit is not a nonnegative integer, or
                both limits are given.
            DataError: the preferences are from a different environment than in earlier fits.
        """
        effort = self._effort(max_epochs, max_updates)
        if len(dataset) == 0:
            return FitReport(undecided=True)
        self._require_few(dataset)
        self.require_environment(dataset)
        self.env_id = more_specific_id(self.env_id, dataset.env_id)
        is_linear = self._learner.architecture.is_linear
        enough = fewest_labels(self._learner.architecture, self._tried)
        if self._is_open and len(dataset) >= enough and not (is_linear and effort.is_empty):
            return self._choose(dataset, effort, progress)
        self._is_open = self._is_open and is_linear
        return self._learner.fit(dataset, effort, progress)

    def _effort(self, max_epochs: int | None, max_updates: int | None) -> FitBudget:
        """Return the length of a fit: the given limit, or if both are None, the length in the settings."""
        if max_epochs is not None and max_updates is not None:
            raise ConfigError(
                f"max_epochs ({max_epochs}) and max_updates ({max_updates}) can't be combined; pass only one"
            )
        if max_epochs is not None:
            return FitBudget(epochs=whole_number(max_epochs, "max_epochs", NOT_NEGATIVE))
        if max_updates is not None:
            return FitBudget(updates=whole_number(max_updates, "max_updates", NOT_NEGATIVE))
        if self.config.initial_epochs is not None and not self._learner.has_begun:
            return FitBudget(epochs=self.config.initial_epochs)
        return TO_CONVERGENCE if self.config.converge else FitBudget(epochs=self.config.epochs)

    def _choose(self, dataset: PreferenceDataset, effort: FitBudget, progress: Progress | None) -> FitReport:
        """Choose the architecture that predicts held-out labels best, then fit it as requested."""
        some = dataset.sample(TRIED_ON)
        chosen = choose([self._learner.untrained(each) for each in self._architectures], some, progress)
        self._tried = len(dataset)
        architecture = chosen.learner.architecture
        was_linear = self._learner.architecture.is_linear
        self._is_open = architecture.is_linear
        rest = counting_from(chosen.updates, progress)
        if architecture.is_linear:
            return self._learner.fit(dataset, effort, rest)
        if was_linear:
            effort = TO_CONVERGENCE  # like the first fit of networks
        report = chosen.report
        if len(some) == len(dataset) and report.updates <= (effort.updates or 0):
            self._learner = chosen.learner
        else:
            learner = self._learner.untrained(architecture)
            report = learner.fit(dataset, effort, rest)
            self._learner = chosen.learner if report.diverged else learner
        return replace(report, choice=message(architecture, was_linear=was_linear))

    def portable(self) -> PortablePredictor:
        """Return the predictor as one torch module, which shares this predictor's network."""
        learner, spaces = self._learner, (self.observation_space, self.action_space)
        return PortablePredictor(learner.read, learner.network, learner.normalize, *spaces)

    @property
    def is_centered(self) -> bool:
        """Return True if inputs are centered; earlier RL-Teacher versions can't load such a predictor."""
        return bool(self._learner.read.state_dict())

    @property
    def averages_images(self) -> bool:
        """Return True if images are downsampled; earlier RL-Teacher versions can't load such a predictor."""
        return self._learner.averages_images

    def _require_few(self, dataset: PreferenceDataset) -> None:
        most = self.config.max_preferences
        if most is not None and len(dataset) > most:
            raise ConfigError(
                f"the dataset has {len(dataset)} preferences, but --reward.max_preferences is {most}; "
                f"set the dataset's max_size to {most} to keep only the newest ones"
            )

    def require_environment(self, dataset: PreferenceDataset) -> None:
        """Raise :class:`DataError` if the dataset is from a different environment than the predictor."""
        if not same_environment(self.env_id, dataset.env_id):
            raise DataError(
                f"the labels are from {dataset.env_id}, but the predictor was fitted to {self.env_id}; use "
                f"labels from {self.env_id}, or set the predictor's env_id to None to switch environments"
            )

    def rewards(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        next_observations: NDArray[Any] | None = None,
        terminated: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]:
        """Return the predicted reward of each step, normalized and averaged over the ensemble.

        All steps are processed in one batch.

        Args:
            observations: ``(*batch, *observation_shape)``, unnormalized observation at the start of each
                step.
            actions: ``(*batch, *action_shape)``, actions passed to the environment.
            next_observations: ``(*batch, *observation_shape)``, unnormalized observation that each step
                returned; required only if ``next_state`` is one of the predictor's inputs.
            terminated: ``(*batch,)``, Gymnasium's ``terminated`` flag (not ``truncated``) of each step;
                required only if ``terminated`` is one of the predictor's inputs.

        Returns:
            ``(*batch,)``. By default, rewards have mean 0 and standard deviation ``reward_std`` over the
            labeled segments; with the input ``absorbing``, steps after an episode's end have mean 0
            instead. The settings ``normalization`` and ``uncertainty_bonus`` change this.

        Raises:
            ConfigError: a required input is missing.
            DataError: the steps do not match the predictor's spaces, or rewards are NaN or infinite.
        """
        return self.step_rewards(StepsBatch(observations, actions, next_observations, terminated))

    def step_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return the predicted reward of each step of a segment, episode or batch; see :meth:`rewards`."""
        features = self._learner.read(steps)
        rewards = _as_array(self._learner.normalize(self._learner.outputs(features)))
        if not np.isfinite(rewards).all():
            raise DataError(why_not_finite(features))
        return rewards

    @property
    def follows(self) -> bool:
        """Return True if :meth:`follow` must be called with each rollout.

        This is the case if ``config.normalization`` is ``running``.
        """
        return self.config.normalization == "running"

    def follow(self, steps: Steps) -> None:
        """Update the running normalization with a rollout's steps; do nothing if it is not used."""
        if self.follows:
            self._learner.normalize.follow(self._outputs(steps))

    def segment_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """Return each segment's sum of predicted rewards: ``(len(segments),)``.

        Args:
            segments: segments of equal length.

        Raises:
            DataError: the segments differ in length or do not match the predictor's spaces.
        """
        if not segments:
            return np.empty(0)
        rewards = _as_array(self._learner.normalize(self._learner.segment_outputs(segments)))
        returns: NDArray[np.float64] = rewards.sum(axis=1)
        return returns

    def member_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """Return each member's predicted return for each segment, discounted but not normalized.

        The first segment's return minus the second's is the logit of the member's predicted probability that
        the first is preferred.

        Args:
            segments: segments of equal length.

        Returns:
            ``(members, len(segments))``.

        Raises:
            DataError: the segments differ in length or do not match the predictor's spaces.
        """
        if not segments:
            return np.empty((self._learner.members, 0))
        outputs = self._learner.segment_outputs(segments)
        return _as_array(outputs @ discounts(outputs.shape[-1], self.config.discount).to(outputs))

    def member_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return each member's predicted rewards ``(members, *batch)``, on the scale of :meth:`rewards`."""
        return _as_array(self._learner.normalize.of_members(self._outputs(steps)))

    def preference_logits(self, dataset: PreferenceDataset) -> NDArray[np.float64]:
        """Return each member's logit for preferring the first segment of each pair.

        The logit is the first segment's return minus the second's, discounted but not normalized.

        Returns:
            ``(members, len(dataset))``.

        Raises:
            DataError: the dataset does not match the predictor's spaces.
        """
        pairs = self._learner.raw_pairs(dataset)
        steps = discounts(pairs.length, self.config.discount).to(pairs.values)
        returns = torch.cat([self._learner.outputs(chunk) @ steps for chunk in pairs.chunks()], dim=1)
        return _as_array(returns[..., 0] - returns[..., 1])

    def _outputs(self, steps: Steps) -> torch.Tensor:
        return self._learner.outputs(self._learner.read(steps))

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, so that a restored predictor continues exactly like this one."""
        return {
            **self._learner.state_dict(),
            "model": self.model,
            "features": self.features,
            "tried": self._tried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors.

        Raises:
            DataError: the state was saved with different settings or spaces; the predictor is unchanged.
        """
        try:
            architecture = self._saved_architecture(state)
            learner, full_size = self._learner, bool(state.get(FULL_SIZE, True))
            members = len(state["output_mean"])
            if not learner.can_load(architecture, full_size=full_size, members=members):
                learner = learner.untrained(architecture, full_size=full_size, members=members)
            tried = int(state.get("tried", 0))
            learner.load_state_dict(state)
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise DataError(
                "the saved predictor does not match these --reward settings "
                f"({describe_exception(error)}); use the settings that it was saved with"
            ) from error
        if architecture not in self._architectures:
            self._architectures = (architecture, *self._architectures)
        has_choice = len(self._architectures) > 1
        self._is_open = has_choice and (architecture.is_linear or state.get("features") == "auto")
        self._learner, self._tried = learner, tried

    def _saved_architecture(self, state: dict[str, Any]) -> Architecture:
        """Return the architecture of a saved state; earlier versions saved no model and no features."""
        features, model = str(state.get("features", self.features)), state.get("model", self.model)
        known = (*self._architectures, LINEAR) if self._loads_linear else self._architectures
        for architecture in known:
            if model == architecture.model and features in ("auto", architecture.features):
                return architecture
        raise ValueError(f"model {model} with {features} features")


def _as_array(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu().numpy(), np.float64)
