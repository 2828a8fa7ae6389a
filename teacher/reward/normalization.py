"""Normalization of ensemble outputs to a single reward with a known scale."""

from typing import Any

import torch
from torch import Tensor

from agents.numerics.moments import SMALLEST_STD, RunningMoments
from teacher.settings.options import REWARD_STD, RewardConfig


class RewardNormalizer:
    """Normalizes the members' raw rewards, averages them, and scales the average.

    Preferences determine a reward only up to shift and scale, so both are set by ``config.normalization``:

    - ``preferences``: over the labeled steps, each member's rewards get mean 0 and standard deviation 1, and
      the final reward gets mean 0 and standard deviation ``reward_std`` (Christiano et al. 2017, section
      2.2.3).
    - ``running``: the final reward is normalized with the running mean and standard deviation over all
      rollout steps so far, as in imitation's ``RunningNorm``.
    - ``none``: the members' raw rewards are averaged without normalization.

    If ``absorbing`` is one of ``config.inputs``, the shift is always that which gives labeled steps after an
    episode's end a mean of 0, their true reward. The return after the end is then 0, as if it terminated.

    ``uncertainty_bonus`` times the members' standard deviation is added to their average.
    """

    def __init__(self, config: RewardConfig, device: torch.device) -> None:
        self._config = config
        self._target_std = REWARD_STD if config.reward_std is None else config.reward_std
        self._mean = torch.zeros(config.num_members, device=device)
        self._std = torch.ones(config.num_members, device=device)
        self._absorbs = "absorbing" in (config.inputs or "").split(",")
        self._center = 0.0  # subtracted from rewards
        self._scale = 1.0
        self._running = RunningMoments()  # of the steps in rollouts

    def fit(self, outputs: Tensor, absorbing: Tensor | None = None) -> None:
        """Compute the normalization statistics from the labeled steps' raw rewards, ``(members, *batch)``.

        Args:
            absorbing: mask ``(*batch,)`` of the steps that get a mean of 0; None if there are none.
        """
        if self._config.normalization != "none":
            std, mean = torch.std_mean(outputs.flatten(1), dim=1, correction=0)
            self._mean, self._std = mean, std.clamp(min=SMALLEST_STD)
            if self._running.count == 0:
                self._scale = self._scale_for(float(self._normalized(outputs).mean(dim=0).std(correction=0)))
        if absorbing is not None and absorbing.any():
            self._center = float(self._combined(outputs)[absorbing].mean())

    def follow(self, outputs: Tensor) -> None:
        """Update the running statistics with the raw rewards of a rollout, ``(members, ...)``.

        Constant rewards, such as an untrained linear model's, are skipped until others have set the scale.
        """
        if outputs.numel() == 0:
            return
        std, mean = (float(value) for value in torch.std_mean(self._combined(outputs), correction=0))
        if self._running.count == 0 and std < SMALLEST_STD:
            return
        self._running.merge(outputs[0].numel(), mean, std**2)
        self._scale = self._scale_for(float(self._running.std))
        if not self._absorbs:
            self._center = float(self._running.mean)

    def __call__(self, outputs: Tensor) -> Tensor:
        """Convert the members' raw rewards ``(members, *batch)`` to the final reward ``(*batch,)``."""
        return (self._combined(outputs) - self._center) * self._scale

    def of_members(self, outputs: Tensor) -> Tensor:
        """Convert each member's raw rewards to the final reward's scale, without the uncertainty bonus."""
        return (self._normalized(outputs) - self._center) * self._scale

    def _combined(self, outputs: Tensor) -> Tensor:
        normalized = self._normalized(outputs)
        mean = normalized.mean(dim=0)
        bonus = self._config.uncertainty_bonus
        return mean if bonus == 0 or mean.numel() == 0 else mean + bonus * normalized.std(dim=0)

    def _normalized(self, outputs: Tensor) -> Tensor:
        per_member = (-1, *[1] * (outputs.ndim - 1))
        return (outputs - self._mean.view(per_member)) / self._std.view(per_member)

    def _scale_for(self, std: float) -> float:
        return self._target_std / max(std, SMALLEST_STD)

    def state_dict(self) -> dict[str, Any]:
        """Return the members' means and standard deviations, and the final reward's center and scale."""
        return {
            "output_mean": self._mean,
            "output_std": self._std,
            "center": self._center,
            "running_mean": float(self._running.mean),
            "running_variance": float(self._running.variance),
            "scale": self._scale,
            "steps": self._running.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; older states lack some entries."""
        self._mean = torch.as_tensor(state["output_mean"]).to(self._mean).reshape_as(self._mean)
        self._std = torch.as_tensor(state["output_std"]).to(self._std).reshape_as(self._std)
        self._scale = float(state["scale"])
        self._center = float(state.get("center", 0.0))
        running = {
            "mean": state.get("running_mean", self._center),
            "variance": state.get("running_variance", (self._target_std / self._scale) ** 2),
            "count": state.get("steps", 0),
        }
        self._running.load_state_dict(running)
