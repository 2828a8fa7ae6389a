"""Fitting of linear reward models: a convex problem with a sparse solution, solved by Newton's method."""

from dataclasses import dataclass, replace
from math import nan
from statistics import fmean

import torch
from torch import Tensor

from teacher.reward.fitting import FitBudget, FitResult, Fitter, Progress
from teacher.reward.loss import preference_loss, preference_slope
from teacher.reward.network import RewardEnsemble
from teacher.reward.pairs import Pairs

_STRENGTH = 3.0  # of the penalty, in labels; like the next one chosen on benchmarks (docs/benchmarks)
_EVEN_PENALTY = 4.0  # factor on weights of squares and logarithms, which extrapolate worse
_FLOOR = 0.05  # share of the penalty's inverse spread evenly, which keeps it finite for weights of 0
_MOST_STEPS = 40
_FEWEST_STEPS = 4  # before the penalty fits the weights
_TOLERANCE = 1e-3  # relative change of the weights
_SHORTEST = 1e-3  # share of a Newton step
_LEAST_AGREEMENT = 0.3  # predicted probability of a label, below which it is dropped
_MOST_TRIMS = 3
_LABELS_PER_WEIGHT = 4  # with fewer, a model contradicts right labels as often as wrong ones


class LinearFitter(Fitter):
    """Fits an ensemble of linear reward models to the optimum, instead of by gradient steps.

    A linear model's return is linear in the segment's sums of inputs, so a fit takes milliseconds if there
    are few inputs. Each member minimizes the preference loss over its bootstrap sample plus
    ``strength / 2 * (sum_j |w_j|)**2``, where ``w`` are the weights on the scale of a segment's return. The
    squared l1 norm selects few inputs, and an input that few labels support gets a weight near 0. Each Newton
    step replaces the norm by a weighted sum of squares, as in Grandvalet (1998), "Least Absolute Shrinkage is
    Equivalent to Quadratic Penalization".

    If there are at least four labels per weight, each member then drops those to which it gives a probability
    below 0.3, because many of them are wrong, and is fitted to the others, up to three times. Cheng et al.
    (2024, "RIME: Robust Preference-based Reinforcement Learning with Noisy Preferences") select labels in a
    similar way. Every fit begins with all labels.
    """

    _network: RewardEnsemble

    def fit(self, pairs: Pairs, effort: FitBudget, progress: Progress | None = None) -> FitResult:
        """Fit every member to the optimum.

        Nothing is fitted if ``effort`` is 0 epochs or 0 updates; other limits are ignored. ``progress`` is
        called with 0 before each Newton step, so that it can stop the fit by raising an exception. The
        arithmetic is in double precision on the CPU.
        """
        if effort.is_empty:
            return FitResult(0)
        weights = self._network.weights[0]
        scale = self._scale(pairs)
        differences = self._differences(pairs) / scale
        targets, values = self._targets(pairs).cpu().double(), pairs.values.cpu().double()
        trims = _MOST_TRIMS if pairs.labels >= _LABELS_PER_WEIGHT * self._network.size else 0
        results = list[FitResult]()
        for member, counts in enumerate(pairs.weights.cpu().double()):
            problem = _Problem(differences, targets, values, counts, self._config.label_noise).of(counts > 0)
            if len(problem.counts) == 0:
                continue
            start = weights[member, :, 0].detach().cpu().double() * scale
            solution, result = problem.solve_without_contradicted(start, trims, progress)
            with torch.no_grad():
                weights[member, :, 0] = (solution / scale).to(weights)
            results.append(result)
        dropped = fmean(result.dropped for result in results) if results else nan
        return FitResult(sum(result.updates for result in results), dropped)

    def _scale(self, pairs: Pairs) -> Tensor:
        """Return the factor between each input's weight and the penalized weight, ``(size,)``."""
        inputs = len(self._network.input_mean)
        factors = torch.ones(self._network.size, dtype=torch.float64)
        factors[inputs:] = _EVEN_PENALTY
        scale: Tensor = factors * pairs.length**0.5
        return scale

    def _differences(self, pairs: Pairs) -> Tensor:
        """Return the first segment's weighted sum of inputs minus the second's, ``(n, size)``."""
        step_weights = self._step_weights(pairs)
        sums = [torch.einsum("nstk,t->nsk", inputs, step_weights) for inputs in pairs.chunks()]
        of_segments = torch.cat(sums).cpu().double()
        return of_segments[:, 0] - of_segments[:, 1]


@dataclass(frozen=True, eq=False)
class _Problem:
    """The convex problem of one member, with ``n`` pairs and ``size`` inputs.

    Attributes:
        differences: ``(n, size)``, the first segment's scaled sum of inputs minus the second's.
        targets: ``(n,)``, target probability that the first segment is preferred.
        values: ``(n,)``, the same without label smoothing.
        counts: ``(n,)``, weight of each pair: how often it is in the bootstrap sample, times its importance.
        noise: assumed fraction of random labels.
    """

    differences: Tensor
    targets: Tensor
    values: Tensor
    counts: Tensor
    noise: float

    def of(self, chosen: Tensor) -> "_Problem":
        """Return the problem with only the pairs chosen by a mask ``(n,)``."""
        return replace(
            self,
            differences=self.differences[chosen],
            targets=self.targets[chosen],
            values=self.values[chosen],
            counts=self.counts[chosen],
        )

    def solve_without_contradicted(
        self, start: Tensor, trims: int, progress: Progress | None = None
    ) -> tuple[Tensor, FitResult]:
        """Solve, then drop the pairs whose labels the solution contradicts and solve again, ``trims`` times.

        Each time, all pairs are judged again. Ties are never dropped.

        Return the weights ``(size,)`` and the work done.
        """
        weights, steps = self.solve(start, progress)
        kept = torch.ones_like(self.values, dtype=torch.bool)
        for _ in range(trims):
            agreeing = self.agreement(weights) > _LEAST_AGREEMENT
            if agreeing.equal(kept) or not agreeing.any():
                break
            kept = agreeing
            weights, more = self.of(kept).solve(weights, progress)
            steps += more
        dropped = 1 - float(self.counts @ kept.to(self.counts) / self.counts.sum()) if trims else nan
        return weights, FitResult(steps, dropped)

    def agreement(self, weights: Tensor) -> Tensor:
        """Return the predicted probability of each label ``(n,)``, without label noise."""
        likely = torch.sigmoid(self.differences @ weights)
        agreement: Tensor = self.values * likely + (1 - self.values) * (1 - likely)
        return agreement

    def solve(self, start: Tensor, progress: Progress | None = None) -> tuple[Tensor, int]:
        """Return the optimal weights ``(size,)`` and the number of Newton steps, beginning at ``start``."""
        weights = start
        for step in range(1, _MOST_STEPS + 1):
            if progress is not None:
                progress(0)
            penalty = _penalty_at(weights)
            change = self._newton_step(weights, penalty)
            weights = weights - change
            if step >= _FEWEST_STEPS and change.norm() <= _TOLERANCE * weights.norm():
                break
        return weights, step

    def objective(self, weights: Tensor, penalty: Tensor) -> Tensor:
        """Return the loss plus ``sum(penalty * weights**2) / 2``."""
        losses = preference_loss(self.differences @ weights, self.targets, self.noise)
        return self.counts @ losses + 0.5 * (penalty * weights.square()).sum()

    def _newton_step(self, weights: Tensor, penalty: Tensor) -> Tensor:
        """Return the step to subtract, halved until the objective doesn't increase."""
        logits = self.differences @ weights
        slopes = self.counts * preference_slope(logits, self.targets, self.noise)
        gradient = self.differences.T @ slopes + penalty * weights
        likely = torch.sigmoid(logits)
        chance = (1 - self.noise) * likely + self.noise / 2
        # Fisher information, which is positive where the second derivative may not be.
        information = ((1 - self.noise) * likely * (1 - likely)).square() / (chance * (1 - chance))
        rows = self.differences * (self.counts * information.nan_to_num()).sqrt()[:, None]
        change = _solve(rows, penalty, gradient)
        before = self.objective(weights, penalty)
        share = 1.0
        while share > _SHORTEST and self.objective(weights - share * change, penalty) > before:
            share /= 2
        return share * change


def _solve(rows: Tensor, diagonal: Tensor, right: Tensor) -> Tensor:
    """Return ``x`` with ``(rows.T @ rows + diag(diagonal)) @ x = right``.

    If there are fewer rows than columns, the Woodbury identity replaces the system by one with an equation
    per row: few labels with many inputs are then as cheap as few inputs with many labels.

    Args:
        rows: ``(n, size)``.
        diagonal: ``(size,)``, all positive.
        right: ``(size,)``.
    """
    solution: Tensor
    if len(rows) >= len(diagonal):
        matrix = rows.T @ rows
        matrix.diagonal().add_(diagonal)
        solution = torch.linalg.solve(matrix, right)
        return solution
    scaled = rows / diagonal
    matrix = rows @ scaled.T
    matrix.diagonal().add_(1)
    solution = right / diagonal - scaled.T @ torch.linalg.solve(matrix, scaled @ right)
    return solution


def _penalty_at(weights: Tensor) -> Tensor:
    """Return the weight of each square ``(size,)`` for which their sum is the squared l1 norm.

    The minimum of ``sum(w**2 / share)`` over positive shares that add up to 1 is ``sum(|w|)**2``, where each
    share is in proportion to ``|w|``.
    """
    sizes, even = weights.abs(), 1 / len(weights)
    total = sizes.sum()
    shares = sizes / total if total > 0 else torch.full_like(sizes, even)
    penalty: Tensor = _STRENGTH * (1 + _FLOOR) / (shares + _FLOOR * even)
    return penalty
