"""The simulations against what queueing theory says of the cases that it has formulas for."""

import math
import random

import numpy as np
import pytest

from benchmarks.scaling import Crowd, CrowdSimulation, Farm, Ring, clip_waits


def idle_share(crowd: Crowd) -> float:
    """Compute a closed network: ``labelers`` who answer one pair at a time, and a delay, both exponential.

    The number of pairs that are not delayed is a birth-death process.
    """
    pairs = round(crowd.open_per_labeler * crowd.labelers)
    weights = [1.0]
    for there in range(pairs):
        arrive = (pairs - there) / crowd.delay
        leave = min(there + 1, crowd.labelers) / crowd.answer
        weights.append(weights[-1] * arrive / leave)
    idle = np.maximum(0, crowd.labelers - np.arange(pairs + 1))
    return float(idle @ weights / sum(weights) / crowd.labelers)


@pytest.mark.parametrize(
    ("each", "delay", "held"), [(2.0, 5.0, 3), (4.0, 10.0, 3), (4.0, 10.0, 1), (4.0, 5.0, 3)]
)
def test_labelers_are_as_idle_as_a_closed_network_says(each: float, delay: float, held: int) -> None:
    crowd = Crowd(labelers=20, open_per_labeler=each, delay=delay, held=held)
    done = CrowdSimulation(crowd, random.Random(2)).run(6000.0, warm_up=500.0)
    expected = idle_share(crowd)
    assert done.idle == pytest.approx(expected, abs=0.01)
    assert done.labels_per_second == pytest.approx(20 * (1 - expected) / crowd.answer, rel=0.02)


def test_pairs_of_labelers_who_vanish_come_back_when_their_leases_end() -> None:
    crowd = Crowd(labelers=20, open_per_labeler=8.0, vanish=0.05)
    stays, vanishes = (
        CrowdSimulation(each, random.Random(2)).run(2000.0, warm_up=500.0)
        for each in (Crowd(labelers=20, open_per_labeler=8.0), crowd)
    )
    assert vanishes.labels_per_second == pytest.approx(0.95 * stays.labels_per_second, rel=0.03)
    assert vanishes.waited[1] > crowd.lease > stays.waited[1]


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_clips_wait_as_erlangs_formula_says(busy: float) -> None:
    workers, clip = 10, 0.2
    waits = clip_waits(Farm(workers, clip, clips=busy * workers / clip, batch=1), 100_000, random.Random(2))
    load = busy * workers
    below = sum(load**k / math.factorial(k) for k in range(workers))
    full = load**workers / math.factorial(workers) / (1 - busy)
    expected = full / (below + full) * clip / (workers * (1 - busy))
    assert np.mean(waits) == pytest.approx(expected, rel=0.1)


def test_a_ring_of_hosts_adds_up_with_as_many_messages_and_bytes_as_the_estimate_says() -> None:
    hosts = 6
    numbers = np.random.default_rng(1).integers(100, size=(hosts, hosts, 5)).astype(float)  # (host, part, 5)
    sums, sent, messages = numbers.sum(axis=0), 0, 0
    for adds, first in ((True, 0), (False, 1)):  # parts are added up on their way, and then handed round
        for step in range(hosts - 1):
            before = numbers.copy()
            for host in range(hosts):
                part, following = (host + first - step) % hosts, (host + 1) % hosts
                mine = before[host, part]
                numbers[following, part] = before[following, part] + mine if adds else mine
            sent, messages = sent + before[0, 0].nbytes, messages + 1
    assert np.array_equal(numbers, np.broadcast_to(sums, numbers.shape))
    ring = Ring(hosts, message=1.0, link=10.0)
    assert ring.moved(numbers[0].nbytes) == pytest.approx(sent)
    assert ring.seconds(numbers[0].nbytes) == pytest.approx(messages + sent / 10.0)
