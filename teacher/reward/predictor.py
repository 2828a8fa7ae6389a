"""Reward predictor: an ensemble of reward models fitted to preferences, with normalized rewards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from teacher.data.preferences import PreferenceDataset
from teacher.data.segments import Segment
from teacher.data.steps import Steps, StepsBatch
from teacher.envs.families import more_specific_id, same_environment
from teacher.errors import ConfigError, DataError, describe_exception
from teacher.reward.building import make_ensemble, make_reader, tensors_like
from teacher.reward.devices import working_device
from teacher.reward.features import why_not_finite
from teacher.reward.fitting import FitBudget, Fitter, Progress
from teacher.reward.images import ImageEnsemble, Images
from teacher.reward.linear import LinearFitter
from teacher.reward.loss import discounts
from teacher.reward.modules import MakeNetwork
from teacher.reward.normalization import RewardNormalizer
from teacher.reward.pairs import BYTES_AT_ONCE, Pairs
from teacher.reward.portable import PortablePredictor
from teacher.reward.report import FitReport, report_of
from teacher.settings.checks import NOT_NEGATIVE, SEED, whole_number
from teacher.settings.options import NumberFeatures, RewardConfig

_CENTER = "input_center"  # state key; missing if no inputs are centered
_FULL_SIZE = "full_size"  # state key; missing in files of versions that kept images at full size
_TO_CONVERGENCE = FitBudget(updates=10_000)
_CLEAR_GAIN = 0.06  # nats per held-out label; smaller gains can be chance if labels are few or noisy
_FEWEST_TO_CHOOSE = 40  # labels; with fewer, gains by chance are often larger than _CLEAR_GAIN
_TRIED_ON = 1000  # maximum number of labels; more take longer and give the same choice


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
            None for the built-in networks.

    Attributes:
        inputs: parts of each step that rewards are predicted from, such as ``next_state``.
        features: ``plain``, or ``even`` if squares and logarithms of features are also network inputs;
            ``auto`` until the first fit chooses one of them.
        env_id: ID of the environment that the preferences come from; None before the first fit. Set it to
            None to continue with preferences from a different environment with the same spaces.
        own_network: the ``network`` argument; None for built-in networks.
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
        self._device = working_device(device)
        self._generator = torch.Generator().manual_seed(whole_number(seed, "seed", SEED))
        self._read = make_reader(observation_space, action_space, config)
        self.inputs = self._read.inputs
        self.features = config.features
        if isinstance(self._read, Images) or network is not None:
            if config.features == "even":
                raise ConfigError(
                    "--reward.features=even can't be used with images or custom networks; use plain or auto"
                )
            if self._is_linear:
                raise ConfigError("--reward.model=linear can't be used with images or custom networks")
            self.features = "plain"
        elif self._is_linear:
            self.features = "even"
        self._full_size = False
        self._begin()
        self._normalize = RewardNormalizer(config, self._device)

    @property
    def _is_linear(self) -> bool:
        return self.config.model == "linear"

    def _begin(self) -> None:
        """Create an untrained network and its fitter."""
        config = self.config if self._is_linear else replace(self.config, features=self.features)
        ensemble = make_ensemble(
            self._read, config, self._generator, self.own_network, full_size=self._full_size
        )
        if config.flat_start:
            ensemble.flatten()
        self._network = ensemble.to(self._device)
        fitter = LinearFitter if self._is_linear else Fitter
        self._fitter = fitter(self._network, config, self._generator)

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

        With ``features="auto"``, the first fit also chooses the features. Given 40 or more preferences, it
        fits a ``plain`` and an ``even`` network to convergence, and chooses ``even`` if that network predicts
        held-out labels clearly better, or if only the ``plain`` fit diverges. In all other cases, it chooses
        ``plain``. Later fits do not change the choice.

        If the dataset is empty, the predictor is not changed. If the fit diverges, the last good parameters
        are kept: in a fit to convergence, the best ones found before it diverged, else the parameters from
        before the fit.

        Args:
            dataset: the preferences, at most ``config.max_preferences``.
            max_epochs: fit for this many epochs, regardless of the settings.
            max_updates: fit to convergence with at most this many updates, regardless of the settings.
            progress: called with the number of updates made so far in this call, including the fits that
                choose the features; called after each update, or less often in a fit to convergence.

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
        if self.features == "auto" and len(dataset) < _FEWEST_TO_CHOOSE:
            self.features = "plain"
        fit = self._choose_features if self.features == "auto" else self._fit
        return fit(dataset, effort, progress)

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
        if self.config.initial_epochs is not None and not self._fitter.has_begun:
            return FitBudget(epochs=self.config.initial_epochs)
        return _TO_CONVERGENCE if self.config.converge else FitBudget(epochs=self.config.epochs)

    def _choose_features(
        self, dataset: PreferenceDataset, effort: FitBudget, progress: Progress | None
    ) -> FitReport:
        """Choose plain or even features by fitting both, then fit the chosen network as requested."""
        some = dataset.sample(_TRIED_ON)
        plain, even = self._untrained("plain"), self._untrained("even")
        report = plain._fit(some, _TO_CONVERGENCE, progress)
        rival_report = even._fit(some, _TO_CONVERGENCE, _counting_from(report.updates, progress))
        made = report.updates + rival_report.updates
        is_better = report.order_loss - rival_report.order_loss >= _CLEAR_GAIN
        is_even = not rival_report.diverged and (is_better or report.diverged)
        chosen, report = (even, rival_report) if is_even else (plain, report)
        self.features = chosen.features
        is_asked_for = len(some) == len(dataset) and report.updates <= (effort.updates or 0)
        start = chosen if is_asked_for else self._untrained(self.features)
        self._network, self._fitter, self._generator = start._network, start._fitter, start._generator
        self._read = start._read
        self._normalize = start._normalize  # running statistics of the previous network do not apply
        if not is_asked_for:
            report = self._fit(dataset, effort, _counting_from(made, progress))
        return replace(report, settled=is_even)

    def _untrained(self, features: NumberFeatures) -> "RewardPredictor":
        """Return an untrained predictor with the same seed and settings, except for ``features``."""
        settings = replace(self.config, features=features)
        seed = self._generator.initial_seed() % 2**32  # earlier versions accepted larger seeds
        return RewardPredictor(self.observation_space, self.action_space, settings, seed, str(self._device))

    def _fit(self, dataset: PreferenceDataset, effort: FitBudget, progress: Progress | None) -> FitReport:
        """Fit the current network; if the fit diverges, restore the last good state."""
        before = self._fitted_state()
        pairs = self._pairs(dataset)
        updates = self._fitter.fit(pairs, effort, progress)
        evaluation = self._fitter.evaluate(pairs)
        learned = bool(evaluation.outputs.isfinite().all())
        sound = learned and self._fitter.is_sound()
        if not sound:
            self._fitter.load_state_dict(before["fitter"])
        if not learned:
            self._network.load_state_dict(before["network"])
            self._read.load_state_dict(before.get(_CENTER, {}))
            return FitReport(updates, diverged=True, doubt=self._read.doubt)
        self._normalize.fit(evaluation.outputs)
        report = report_of(updates, evaluation, pairs, self.config.label_noise)
        return replace(report, diverged=not sound, doubt=self._read.doubt)

    def portable(self) -> PortablePredictor:
        """Return the predictor as one torch module, which shares this predictor's network."""
        spaces = self.observation_space, self.action_space
        return PortablePredictor(self._read, self._network, self._normalize, *spaces)

    @property
    def is_centered(self) -> bool:
        """Return True if inputs are centered; earlier RL-Teacher versions can't load such a predictor."""
        return bool(self._read.state_dict())

    @property
    def averages_images(self) -> bool:
        """Return True if images are downsampled; earlier RL-Teacher versions can't load such a predictor."""
        return isinstance(self._network, ImageEnsemble) and self._network.averaged > 1

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
            labeled segments. The settings ``normalization`` and ``uncertainty_bonus`` change this.

        Raises:
            ConfigError: a required input is missing.
            DataError: the steps do not match the predictor's spaces, or rewards are NaN or infinite.
        """
        return self.step_rewards(StepsBatch(observations, actions, next_observations, terminated))

    def step_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return the predicted reward of each step of a segment, episode or batch; see :meth:`rewards`."""
        features = self._read(steps)
        rewards = self._rewards(features)
        if not np.isfinite(rewards).all():
            raise DataError(why_not_finite(features))
        return rewards

    @property
    def follows(self) -> bool:
        """Return True if :meth:`follow` must be called with each rollout.

        This is the case if ``config.normalization`` is ``running``.
        """
        return self.config.normalization == "running"

    @torch.no_grad()
    def follow(self, steps: Steps) -> None:
        """Update the running normalization with a rollout's steps; do nothing if it is not used."""
        if self.follows:
            self._normalize.follow(self._outputs(self._read(steps)))

    def segment_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """Return each segment's sum of predicted rewards: ``(len(segments),)``.

        Args:
            segments: segments of equal length.

        Raises:
            DataError: the segments differ in length or do not match the predictor's spaces.
        """
        if not segments:
            return np.empty(0)
        rewards = self._normalize(self._segment_outputs(segments)).cpu().numpy()
        returns: NDArray[np.float64] = rewards.astype(np.float64).sum(axis=1)
        return returns

    @torch.no_grad()
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
            return np.empty((self.config.members, 0))
        outputs = self._segment_outputs(segments)
        steps = discounts(outputs.shape[-1], self.config.discount).to(self._device)
        return np.asarray((outputs @ steps).cpu().numpy(), np.float64)

    @torch.no_grad()
    def member_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return each member's predicted rewards ``(members, *batch)``, on the scale of :meth:`rewards`."""
        outputs = self._normalize.of_members(self._outputs(self._read(steps)))
        return np.asarray(outputs.cpu().numpy(), np.float64)

    @torch.no_grad()
    def preference_logits(self, dataset: PreferenceDataset) -> NDArray[np.float64]:
        """Return each member's logit for preferring the first segment of each pair.

        The logit is the first segment's return minus the second's, discounted but not normalized.

        Returns:
            ``(members, len(dataset))``.

        Raises:
            DataError: the dataset does not match the predictor's spaces.
        """
        pairs = Pairs(dataset, self._read, self.config.members, self._device)
        steps = discounts(pairs.length, self.config.discount).to(self._device)
        returns = torch.cat([self._outputs(chunk) @ steps for chunk in pairs.chunks()], dim=1)
        return np.asarray((returns[..., 0] - returns[..., 1]).cpu().numpy(), np.float64)

    @torch.no_grad()
    def _segment_outputs(self, segments: Sequence[Segment]) -> Tensor:
        """Return the members' raw rewards ``(members, len(segments), length)``, computed in chunks."""
        lengths = sorted(set(map(len, segments)))
        if len(lengths) > 1:
            raise DataError(
                f"segments must have equal length, but some have {lengths[0]} steps and others "
                f"{lengths[-1]}; pass segments of each length separately"
            )
        at_once = max(1, BYTES_AT_ONCE // (len(segments[0]) * self._read.bytes_per_step))
        outputs = [
            self._outputs(torch.stack([self._read(segment) for segment in segments[start : start + at_once]]))
            for start in range(0, len(segments), at_once)
        ]
        return torch.cat(outputs, dim=1)

    @torch.no_grad()
    def _rewards(self, features: Tensor) -> NDArray[np.float64]:
        return np.asarray(self._normalize(self._outputs(features)).cpu().numpy(), np.float64)

    def _outputs(self, features: Tensor) -> Tensor:
        """Return the members' raw rewards ``(members, *batch)`` for features ``(*batch, ...)``."""
        outputs: Tensor = self._network(self._network.standardize(features.to(self._device)))
        return outputs

    def _pairs(self, dataset: PreferenceDataset) -> Pairs:
        """Convert the dataset to tensors, and update centers and input statistics from it."""
        moved = self._read.center_on(dataset)
        if moved is not None:
            self._network.recenter(moved.to(self._device))
        pairs = Pairs(dataset, self._read, self.config.members, self._device)
        self._network.adapt(pairs.chunks())
        pairs.standardize(self._network.standardize)
        return pairs

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, so that a restored predictor continues exactly like this one."""
        return {
            **self._fitted_state(),
            "features": self.features,
            _FULL_SIZE: self._full_size,
            "generator": self._generator.get_state(),
            **self._normalize.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors.

        Raises:
            DataError: the state was saved with different settings or spaces.
        """
        before = self.features, self._full_size, self._network, self._fitter
        generator = self._generator.get_state()
        features = str(state.get("features", self.features))  # missing in files of earlier versions
        full_size = bool(state.get(_FULL_SIZE, True))
        try:
            is_settled = features != self.features and self.config.features == "auto" and not self._is_linear
            if is_settled:
                self.features = cast(NumberFeatures, features)
            if is_settled or (full_size != self._full_size and isinstance(self._network, ImageEnsemble)):
                self._full_size = full_size
                self._begin()
            network = tensors_like(self._network.state_dict(), state["network"])
            self._read.load_state_dict(state.get(_CENTER, {}))
            self._network.load_state_dict(network)
            self._fitter.load_state_dict(state["fitter"])
            self._generator.set_state(torch.as_tensor(state["generator"]))
            self._normalize.load_state_dict(state)
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            self.features, self._full_size, self._network, self._fitter = before
            self._generator.set_state(generator)
            raise DataError(
                "the saved predictor does not match these --reward settings "
                f"({describe_exception(error)}); use the settings that it was saved with"
            ) from error

    def _fitted_state(self) -> dict[str, Any]:
        """Return a copy of the state that a fit changes, to be restored if the fit diverges."""
        center = self._read.state_dict()
        return {
            **({_CENTER: center} if center else {}),
            "network": {name: value.clone() for name, value in self._network.state_dict().items()},
            "fitter": self._fitter.state_dict(),
        }


def _counting_from(made: int, progress: Progress | None) -> Progress | None:
    """Wrap ``progress`` to add ``made`` to the count it receives; return None if ``progress`` is None."""
    return None if progress is None else lambda updates: progress(made + updates)
