"""Reward predictor: an ensemble fitted to preferences, with normalized and averaged outputs."""

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
from teacher.reward.loss import discounts
from teacher.reward.modules import MakeNetwork
from teacher.reward.normalization import RewardNormalizer
from teacher.reward.pairs import BYTES_AT_ONCE, Pairs
from teacher.reward.report import FitReport, report_of
from teacher.settings.checks import NOT_NEGATIVE, SEED, whole_number
from teacher.settings.options import NumberFeatures, RewardConfig

_CENTER = "input_center"  # state key; missing in files whose inputs need no centering
_FULL_SIZE = "full_size"  # state key; files without it do not downsample large images
_TO_CONVERGENCE = FitBudget(updates=10_000)  # at most
_CLEAR_GAIN = 0.06  # nats per held-out label; few or noisy labels reach nearly as much by chance
_TELLING = 40  # labels; with fewer, chance gains are often larger
_TRIED_ON = 1000  # labels at most; more take longer and change nothing


class RewardPredictor:
    """Predicts the reward of each step, learned from preferences between segments.

    Args:
        observation_space: of one environment, Box or Discrete. Three dimensions of uint8 are an image.
        action_space: of one environment, Box or Discrete.
        config: see :class:`RewardConfig`.
        seed: for initial parameters and minibatches.
        device: torch device.
        network: makes each member in place of the built-in networks; see
            :data:`~teacher.reward.modules.MakeNetwork`.

    Attributes:
        inputs: which parts of each step are read.
        features: how each number is read, ``plain`` or ``even``; ``auto`` before the first fit.
        env_id: environment of the last fit's preferences; None before the first fit. Set it to None to
            continue with preferences from another environment with the same spaces.
        own_network: the function that makes custom members, if any.
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
                    "--reward.features: expected plain or auto for images and custom networks, got even"
                )
            self.features = "plain"
        self._full_size = False
        self._begin()
        self._normalize = RewardNormalizer(config, self._device)

    def _begin(self) -> None:
        """Make an untrained network and its fitter."""
        config = replace(self.config, features=self.features)
        ensemble = make_ensemble(
            self._read, config, self._generator, self.own_network, full_size=self._full_size
        )
        if config.flat_start:
            ensemble.flatten()
        self._network = ensemble.to(self._device)
        self._fitter = Fitter(self._network, config, self._generator)

    def fit(
        self,
        dataset: PreferenceDataset,
        *,
        max_epochs: int | None = None,
        max_updates: int | None = None,
        progress: Progress | None = None,
    ) -> FitReport:
        """Continue fitting from where the last fit ended, for as long as the settings say.

        Args:
            dataset: the preferences, at most ``max_preferences`` of the settings.
            max_epochs: fit for this many epochs instead.
            max_updates: fit to convergence instead, with at most this many updates: until no member improves
                on its held-out pairs; each member ends with its best parameters.
            progress: called with the number of updates made: after each, or occasionally in a fit to
                convergence. The count continues over both fits where two networks are compared.

        With ``features`` set to ``auto``, the first fit decides, however short it is: with 40 preferences or
        more, both variants are fitted to convergence, and ``even`` is used from then on if it orders the
        held-out pairs clearly better.

        Without preferences (all may have been undone), nothing changes. If the fit diverges, the last good
        parameters are kept: the best so far in a fit to convergence, else those before the fit.

        Raises:
            ConfigError: there are more preferences than ``max_preferences``, a limit is not an integer of 0
                or more, or both limits are given.
            DataError: the preferences are from another environment than those before.
        """
        effort = self._effort(max_epochs, max_updates)
        if len(dataset) == 0:
            return FitReport(undecided=True)
        self._require_few(dataset)
        self.require_environment(dataset)
        self.env_id = more_specific_id(self.env_id, dataset.env_id)
        if self.features == "auto" and len(dataset) < _TELLING:
            self.features = "plain"
        fit = self._settle if self.features == "auto" else self._fit
        return fit(dataset, effort, progress)

    def _effort(self, max_epochs: int | None, max_updates: int | None) -> FitBudget:
        """Return the budget of a fit: the limit that was given, else that of the settings."""
        if max_epochs is not None and max_updates is not None:
            raise ConfigError(
                f"expected either max_epochs or max_updates, got {max_epochs} and {max_updates}; "
                "pass one of them"
            )
        if max_epochs is not None:
            return FitBudget(epochs=whole_number(max_epochs, "max_epochs", NOT_NEGATIVE))
        if max_updates is not None:
            return FitBudget(updates=whole_number(max_updates, "max_updates", NOT_NEGATIVE))
        if self.config.initial_epochs is not None and not self._fitter.has_begun:
            return FitBudget(epochs=self.config.initial_epochs)
        return _TO_CONVERGENCE if self.config.converge else FitBudget(epochs=self.config.epochs)

    def _settle(self, dataset: PreferenceDataset, effort: FitBudget, progress: Progress | None) -> FitReport:
        """Choose plain or even features by comparing two fits, then fit as requested; see :meth:`fit`."""
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
        self._normalize = start._normalize  # earlier running statistics are from another network
        if not is_asked_for:
            report = self._fit(dataset, effort, _counting_from(made, progress))
        return replace(report, settled=is_even)

    def _untrained(self, features: NumberFeatures) -> "RewardPredictor":
        """Return an untrained predictor with the same seed and these features."""
        settings = replace(self.config, features=features)
        seed = self._generator.initial_seed() % 2**32  # earlier files may hold any seed
        return RewardPredictor(self.observation_space, self.action_space, settings, seed, str(self._device))

    def _fit(self, dataset: PreferenceDataset, effort: FitBudget, progress: Progress | None) -> FitReport:
        """Fit the current network; see :meth:`fit`."""
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

    @property
    def is_centered(self) -> bool:
        """Return True if inputs are centered, which versions without centers did not do."""
        return bool(self._read.state_dict())

    @property
    def averages_images(self) -> bool:
        """Return True if images are downsampled, which earlier versions did not do."""
        return isinstance(self._network, ImageEnsemble) and self._network.averaged > 1

    def _require_few(self, dataset: PreferenceDataset) -> None:
        most = self.config.max_preferences
        if most is not None and len(dataset) > most:
            raise ConfigError(
                f"--reward.max_preferences: expected {most} preferences or fewer, got {len(dataset)}; set "
                f"the dataset's max_size to {most}, which keeps the latest"
            )

    def require_environment(self, dataset: PreferenceDataset) -> None:
        """Raise :class:`DataError` if the preferences are not from the predictor's environment."""
        if not same_environment(self.env_id, dataset.env_id):
            raise DataError(
                f"expected labels from {self.env_id}, the predictor's environment, got labels from "
                f"{dataset.env_id}; use a dataset from that environment, or set the predictor's env_id to "
                "None to switch environments"
            )

    def rewards(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        next_observations: NDArray[Any] | None = None,
        terminated: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]:
        """Return the predicted reward of each step: members normalized, averaged, scaled; in one batch.

        Args:
            observations: ``(*batch, *observation_shape)``, raw, before the step.
            actions: ``(*batch, *action_shape)``, as executed.
            next_observations: ``(*batch, *observation_shape)``, raw, after the step; needed only if
                ``next_state`` is among the inputs.
            terminated: ``(*batch,)``, True where the environment ended the episode; needed only if it is
                among the inputs.

        Returns:
            ``(*batch,)``, by default with mean 0 and standard deviation ``reward_std`` over the labeled
            segments; ``normalization`` and an uncertainty bonus change that.

        Raises:
            ConfigError: an input is missing.
            DataError: the steps are from another environment, or their rewards are NaN or infinite.
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
        """Return True if rewards are normalized by the steps they are used for; see :meth:`follow`."""
        return self.config.normalization == "running"

    @torch.no_grad()
    def follow(self, steps: Steps) -> None:
        """Count the steps of a rollout in the running normalization, if that is used."""
        if self.follows:
            self._normalize.follow(self._outputs(self._read(steps)))

    def segment_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """Return the sum of predicted rewards of each segment: ``(len(segments),)``.

        Args:
            segments: all of the same length.

        Raises:
            DataError: they differ in length, or are from another environment.
        """
        if not segments:
            return np.empty(0)
        rewards = self._normalize(self._segment_outputs(segments)).cpu().numpy()
        returns: NDArray[np.float64] = rewards.astype(np.float64).sum(axis=1)
        return returns

    @torch.no_grad()
    def member_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        """Return each member's return of each segment, discounted and not normalized.

        The difference of a pair's returns is the logit of the member's preference.

        Args:
            segments: all of the same length.

        Returns:
            ``(members, len(segments))``.

        Raises:
            DataError: they differ in length, or are from another environment.
        """
        if not segments:
            return np.empty((self.config.members, 0))
        outputs = self._segment_outputs(segments)
        steps = discounts(outputs.shape[-1], self.config.discount).to(self._device)
        return np.asarray((outputs @ steps).cpu().numpy(), np.float64)

    @torch.no_grad()
    def member_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return each member's rewards, ``(members, *batch)``, on the scale of :meth:`rewards`."""
        outputs = self._normalize.of_members(self._outputs(self._read(steps)))
        return np.asarray(outputs.cpu().numpy(), np.float64)

    @torch.no_grad()
    def preference_logits(self, dataset: PreferenceDataset) -> NDArray[np.float64]:
        """Return each member's logit for the first segment of each pair: ``(members, len(dataset))``.

        A logit is the difference of the segments' returns, discounted and not normalized.

        Raises:
            DataError: the dataset does not have the predictor's spaces.
        """
        pairs = Pairs(dataset, self._read, self.config.members, self._device)
        steps = discounts(pairs.length, self.config.discount).to(self._device)
        returns = torch.cat([self._outputs(chunk) @ steps for chunk in pairs.chunks()], dim=1)
        return np.asarray((returns[..., 0] - returns[..., 1]).cpu().numpy(), np.float64)

    @torch.no_grad()
    def _segment_outputs(self, segments: Sequence[Segment]) -> Tensor:
        """Return raw rewards, ``(members, len(segments), length)``, computed in parts."""
        lengths = sorted(set(map(len, segments)))
        if len(lengths) > 1:
            raise DataError(
                f"expected segments of one length, got some of {lengths[0]} and some of {lengths[-1]} steps; "
                "pass segments of each length separately"
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
        """Return raw rewards, ``(members, *batch)``."""
        outputs: Tensor = self._network(self._network.standardize(features.to(self._device)))
        return outputs

    def _pairs(self, dataset: PreferenceDataset) -> Pairs:
        """Return the dataset as tensors, after updating the input statistics with it."""
        moved = self._read.center_on(dataset)
        if moved is not None:
            self._network.recenter(moved.to(self._device))
        pairs = Pairs(dataset, self._read, self.config.members, self._device)
        self._network.adapt(pairs.chunks())
        pairs.standardize(self._network.standardize)
        return pairs

    def state_dict(self) -> dict[str, Any]:
        """Return everything that :meth:`load_state_dict` needs to continue exactly."""
        return {
            **self._fitted_state(),
            "features": self.features,
            _FULL_SIZE: self._full_size,
            "generator": self._generator.get_state(),
            **self._normalize.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; accepts arrays in place of tensors.

        Raises:
            DataError: it was saved with other settings.
        """
        before = self.features, self._full_size, self._network, self._fitter
        generator = self._generator.get_state()
        features = str(state.get("features", self.features))  # earlier files have no features
        full_size = bool(state.get(_FULL_SIZE, True))
        try:
            is_settled = features != self.features and self.config.features == "auto"
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
                "expected the state of a predictor with these --reward settings, got another one "
                f"({describe_exception(error)}); use the settings it was saved with"
            ) from error

    def _fitted_state(self) -> dict[str, Any]:
        """Return a copy of everything that a fit changes, to restore it if the fit diverges."""
        center = self._read.state_dict()
        return {
            **({_CENTER: center} if center else {}),
            "network": {name: value.clone() for name, value in self._network.state_dict().items()},
            "fitter": self._fitter.state_dict(),
        }


def _counting_from(made: int, progress: Progress | None) -> Progress | None:
    """Return ``progress`` with ``made`` updates of earlier fits added to its count."""
    return None if progress is None else lambda updates: progress(made + updates)
