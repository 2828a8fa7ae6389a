"""Reward ensemble of one architecture, with everything that fits it and normalizes its rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from teacher.data.preferences import PreferenceDataset
from teacher.data.segments import Segment
from teacher.errors import DataError
from teacher.reward.building import Architecture, make_ensemble, make_reader, tensors_like
from teacher.reward.fitting import FitBudget, Fitter, Progress
from teacher.reward.linear import LinearFitter
from teacher.reward.loss import PreferenceLoss
from teacher.reward.modules import MakeNetwork
from teacher.reward.normalization import RewardNormalizer
from teacher.reward.pairs import BYTES_AT_ONCE, Pairs
from teacher.reward.report import FitReport, report_of
from teacher.settings.options import RewardConfig

_CENTER = "input_center"  # state key; missing if no inputs are centered
FULL_SIZE = "full_size"  # state key; missing in files of versions that kept images at full size


@dataclass(frozen=True, kw_only=True)
class LearnerSpec:
    """Arguments that all learners of a predictor share.

    Attributes:
        network: factory called once per ensemble member; None for built-in models.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    config: RewardConfig
    seed: int
    device: torch.device
    network: MakeNetwork | None
    loss: PreferenceLoss | None


class EnsembleLearner:
    """Reward ensemble of one architecture that is fitted to preferences between segments.

    Args:
        members: number of ensemble members if the settings leave it open; None for the default.
    """

    def __init__(self, spec: LearnerSpec, architecture: Architecture, members: int | None = None) -> None:
        config = spec.config.with_members(members, linear=architecture.is_linear)
        self.architecture = architecture
        self.members = config.num_members
        self.read = make_reader(spec.observation_space, spec.action_space, config)
        self._spec = spec
        self._device = spec.device
        self._generator = torch.Generator().manual_seed(spec.seed)
        ensemble = make_ensemble(self.read, config, architecture, self._generator, spec.network)
        self.network = ensemble.to(spec.device)
        self._fitter: Fitter = (
            LinearFitter(self.network, config, self._generator)
            if architecture.is_linear
            else Fitter(self.network, config, self._generator, spec.loss)
        )
        self.normalize = RewardNormalizer(config, spec.device)

    @property
    def has_begun(self) -> bool:
        """Return True if the optimizer has made a step; False for linear models, which need none."""
        return self._fitter.has_begun

    def fit(self, dataset: PreferenceDataset, effort: FitBudget, progress: Progress | None) -> FitReport:
        """Fit the ensemble, starting from its current parameters, or restore them if the fit diverges."""
        before = self._fitted_state()
        pairs = self.pairs(dataset)
        made = self._fitter.fit(pairs, effort, progress)
        evaluation = self._fitter.evaluate(pairs)
        learned = bool(evaluation.outputs.isfinite().all())
        sound = learned and self._fitter.is_sound()
        if not sound:
            self._fitter.load_state_dict(before["fitter"])
        if not learned:
            self.network.load_state_dict(before["network"])
            self.read.load_state_dict(before.get(_CENTER, {}))
            return FitReport(made.updates, diverged=True, doubt=self.read.doubt)
        self.normalize.fit(evaluation.outputs, pairs.absorbing)
        report = report_of(made, evaluation, pairs, self._spec.config.label_noise)
        return replace(report, diverged=not sound, doubt=self.read.doubt)

    def pairs(self, dataset: PreferenceDataset) -> Pairs:
        """Convert the dataset to tensors, and update centers and input statistics from it."""
        moved = self.read.center_on(dataset)
        if moved is not None:
            self.network.recenter(moved.to(self._device))
        pairs = self.raw_pairs(dataset)
        self.network.adapt(pairs.chunks())
        pairs.standardize(self.network.standardize)
        return pairs

    def raw_pairs(self, dataset: PreferenceDataset) -> Pairs:
        """Convert the dataset to tensors that are not standardized."""
        return Pairs(dataset, self.read, self.members, self._device)

    @torch.no_grad()
    def outputs(self, features: Tensor) -> Tensor:
        """Return the members' raw rewards ``(members, *batch)`` for features ``(*batch, ...)``."""
        outputs: Tensor = self.network(self.network.standardize(features.to(self._device)))
        return outputs

    @torch.no_grad()
    def segment_outputs(self, segments: Sequence[Segment]) -> Tensor:
        """Return the members' raw rewards ``(members, len(segments), length)``, computed in chunks."""
        lengths = sorted(set(map(len, segments)))
        if len(lengths) > 1:
            raise DataError(
                f"segments must have equal length, but some have {lengths[0]} steps and others "
                f"{lengths[-1]}; pass segments of each length separately"
            )
        at_once = max(1, BYTES_AT_ONCE // (len(segments[0]) * self.read.bytes_per_step))
        outputs = [
            self.outputs(torch.stack([self.read(segment) for segment in segments[start : start + at_once]]))
            for start in range(0, len(segments), at_once)
        ]
        return torch.cat(outputs, dim=1)

    def untrained(self, architecture: Architecture, members: int | None = None) -> "EnsembleLearner":
        """Return an untrained learner with the same settings and seed."""
        seed = self._generator.initial_seed() % 2**32  # earlier versions accepted larger seeds
        spec = replace(self._spec, seed=seed)
        return EnsembleLearner(spec, architecture, members)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, so that a restored learner continues exactly like this one."""
        return {
            **self._fitted_state(),
            FULL_SIZE: self.architecture.full_size,
            "generator": self._generator.get_state(),
            **self.normalize.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors."""
        before = self.state_dict()
        try:
            self._load(state)
        except Exception:
            self._load(before)
            raise

    def _load(self, state: dict[str, Any]) -> None:
        network = tensors_like(self.network.state_dict(), state["network"])
        self.read.load_state_dict(state.get(_CENTER, {}))
        self.network.load_state_dict(network)
        self._fitter.load_state_dict(state["fitter"])
        self._generator.set_state(torch.as_tensor(state["generator"]))
        self.normalize.load_state_dict(state)

    def _fitted_state(self) -> dict[str, Any]:
        """Return a copy of the state that a fit changes, to be restored if the fit diverges."""
        center = self.read.state_dict()
        return {
            **({_CENTER: center} if center else {}),
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "fitter": self._fitter.state_dict(),
        }
