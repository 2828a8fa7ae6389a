"""Reward predictor: an ensemble of reward models fitted to preferences, with normalized rewards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.data.steps import Steps, StepsBatch
from teacher.envs.families import more_specific_id, same_environment
from teacher.errors import ConfigError, DataError, describe_exception
from teacher.reward.building import working_device
from teacher.reward.choice import TO_CONVERGENCE, ModelChoice
from teacher.reward.features import why_not_finite
from teacher.reward.fitting import FitBudget, Progress
from teacher.reward.images import ImageEnsemble, is_image_space
from teacher.reward.learner import EnsembleLearner, LearnerSpec
from teacher.reward.loss import PreferenceLoss, discounts
from teacher.reward.modules import MakeNetwork
from teacher.reward.portable import PortablePredictor
from teacher.reward.report import FitReport
from teacher.settings.checks import NOT_NEGATIVE, SEED, whole_number
from teacher.settings.options import RewardConfig

STEPS_AT_ONCE = 2**14


class RewardPredictor:
    """Ensemble of reward models that learns the reward of each step from preferences between segments.

    Args:
        observation_space: observation space of a single environment: Box, Discrete or MultiDiscrete. A uint8
            Box with two to four dimensions is treated as images.
        action_space: action space of a single environment: Box, Discrete or MultiDiscrete.
        network: factory called once per ensemble member (see :data:`~teacher.reward.modules.MakeNetwork`);
            None for the built-in reward models.
        loss: loss of the preferences, which only networks can minimize; None for
            :func:`~teacher.reward.loss.preference_loss`, that of the Bradley-Terry model.

    Attributes:
        inputs: parts of each step that rewards are predicted from, such as ``next_state``.
        env_id: ID of the environment that the preferences come from; None before the first fit. Set it to
            None to continue with preferences from a different environment with the same spaces.
        own_network: the ``network`` argument; None for built-in reward models.
    """

    def __init__(  # noqa: PLR0913 (spaces, settings, and what Python alone can give)
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: RewardConfig,
        seed: int,
        device: str = "cpu",
        network: MakeNetwork | None = None,
        *,
        loss: PreferenceLoss | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.env_id: str | None = None
        self.own_network = network
        self.own_loss = loss is not None
        spec = LearnerSpec(
            observation_space=observation_space,
            action_space=action_space,
            config=config,
            seed=whole_number(seed, "seed", SEED),
            device=working_device(device),
            network=network,
            loss=loss,
        )
        has_built_in = network is None and not is_image_space(observation_space)
        self._choice = ModelChoice(config, has_built_in=has_built_in, own_loss=self.own_loss)
        self._learner = EnsembleLearner(spec, self._choice.current)
        self.inputs = self._learner.read.inputs

    @property
    def model(self) -> str:
        """Return the kind of reward model in use: ``linear`` or ``network``."""
        return self._choice.current.model

    @property
    def members(self) -> int:
        """Return the number of reward models in the ensemble."""
        return self._learner.members

    @property
    def features(self) -> str:
        """Return ``plain``, or ``even`` if squares and logarithms of features are inputs of the models too.

        The value is ``auto`` until a network's first fit chooses one of them.
        """
        return self._choice.features

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

        With ``model="auto"`` or ``features="auto"``, some fits compare several kinds of models, each fitted
        to convergence (see :class:`~teacher.reward.choice.ModelChoice`). Networks replace linear models, and
        even networks plain ones, if they predict held-out labels clearly better, or if the others diverge.

        If the dataset is empty, the predictor is not changed. If the fit diverges, the last good parameters
        are kept: in a fit to convergence, the best ones found before it diverged, else the parameters from
        before the fit.

        Args:
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
        self._learner, report = self._choice.fit(self._learner, dataset, effort, progress)
        return report

    def _effort(self, max_epochs: int | None, max_updates: int | None) -> FitBudget:
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
        network = self._learner.network
        return isinstance(network, ImageEnsemble) and network.averaged > 1

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

        Raises:
            DataError: the segments differ in length or do not match the predictor's spaces.
        """
        if not segments:
            return np.empty(0)
        rewards = _as_array(self._learner.normalize(self._learner.segment_outputs(segments)))
        returns: NDArray[np.float64] = rewards.sum(axis=1)
        return returns

    def agrees(self, preferences: Sequence[Preference]) -> NDArray[np.bool_]:
        """Return whether each preference's better segment has the higher return: ``(len(preferences),)``.

        Raises:
            DataError: same as for :meth:`segment_returns`.
        """
        sides = zip(*(each.items for each in preferences), strict=True)
        one, other = (self.segment_returns(side) for side in sides)
        wanted = np.array([each.value for each in preferences]) > 0.5
        found: NDArray[np.bool_] = (one > other) == wanted
        return found

    def member_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """Return each member's predicted return for each segment, discounted but not normalized.

        The first segment's return minus the second's is the logit of the member's predicted probability that
        the first is preferred.

        Returns:
            ``(members, len(segments))``.

        Raises:
            DataError: same as for :meth:`segment_returns`.
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
        return {**self._learner.state_dict(), **self._choice.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors.

        Raises:
            DataError: the state was saved with different settings or spaces; the predictor is unchanged.
        """
        try:
            choice, learner = self._choice.restored(state), self._learner
            members = len(state["output_mean"])
            if (choice.current, members) != (learner.architecture, learner.members):
                learner = learner.untrained(choice.current, members)
            learner.load_state_dict(state)
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise DataError(
                "the saved predictor does not match these --reward settings "
                f"({describe_exception(error)}); use the settings that it was saved with"
            ) from error
        self._choice, self._learner = choice, learner


def _as_array(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu().numpy(), np.float64)


def relabeled(
    predictor: RewardPredictor,
    observations: NDArray[Any],
    actions: NDArray[Any],
    next_observations: NDArray[Any] | None = None,
    terminated: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Relabel ``n`` stored steps: return the predictor's current rewards, ``(n,)``.

    Takes the arguments of :meth:`RewardPredictor.rewards`, for ``n`` steps. The next observation of an
    episode's last step is its final one, not the first after the reset.
    """
    rewards = np.empty(len(observations))
    for start in range(0, len(rewards), STEPS_AT_ONCE):
        part = slice(start, start + STEPS_AT_ONCE)
        after = None if next_observations is None else next_observations[part]
        ends = None if terminated is None else terminated[part]
        rewards[part] = predictor.step_rewards(StepsBatch(observations[part], actions[part], after, ends))
    return rewards
