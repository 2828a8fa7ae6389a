"""The benchmark of reward learning's speed times our side alone too, and divides as it says."""

from pathlib import Path

from benchmarks.reward_speed import Bench, report


def test_our_side_is_timed_without_imitation(tmp_path: Path) -> None:
    found = Bench(tmp_path, imitation=None).relabel(seed=1)
    assert list(found) == ["ours"]
    assert 0 < found["ours"] < 1e-3  # seconds for one step


def test_ratios_are_medians_over_rounds_with_their_range() -> None:
    rounds = [{"ours": ours, "imitation": theirs} for ours, theirs in [(1.0, 10.0), (2.0, 30.0), (1.0, 40.0)]]
    assert list(report("fit", rounds)) == [
        "| fit | ours | 1 (1 to 2) s |",
        "| fit | imitation | 30 (10 to 40) s |",
        "| fit | imitation / ours | **15 (10 to 40)** |",
    ]


def test_a_run_on_labels_is_set_against_one_on_the_true_reward() -> None:
    rounds = [{"ours, rl": 2.0, "ours, rl, CPU": 2.0, "ours, synth": 3.0, "ours, synth, CPU": 5.0}]
    assert list(report("steps", rounds))[-2:] == [
        "| steps | ours, synth / ours, rl | **1.5 (1.5 to 1.5)** |",
        "| steps | ours, synth, CPU / ours, rl, CPU | **2.5 (2.5 to 2.5)** |",
    ]
