"""Segments lie in the same places of an episode; columns are arrays that grow; checkpoints come back."""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from teacher.data.checkpoint import dump_state, load_state, parse_state, save_state
from teacher.data.columns import Column, require_numbers
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentCutter
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, StorageError
from teacher.wrapper.recording import SegmentRecorder, Source, Step

SPACE = Box(-np.inf, np.inf, (1,), np.float64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_segments_follow_one_another_however_an_episode_grows(seed: int, at_once: int) -> None:
    cutter = SegmentCutter(7, np.random.default_rng(seed))
    steps = [*range(0, 60, at_once), 60]
    parts = [part for count in steps for part in cutter.cut(count, finished=count == 60)]
    first = parts[0].start
    assert 0 <= first < 7
    assert parts == [slice(start, start + 7) for start in range(first, 60 - 6, 7)]
    assert cutter.next_start == parts[-1].stop


def test_an_episode_that_is_too_short_gives_none_and_draws_nothing() -> None:
    random = np.random.default_rng(1)
    assert SegmentCutter(7, random).cut(6, finished=True) == []
    assert SegmentCutter(7, random).cut(12, finished=False) == []  # an offset of 6 would leave no room
    assert random.bit_generator.state == np.random.default_rng(1).bit_generator.state
    assert len(SegmentCutter(7, random, first=3).cut(10, finished=True)) == 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("moving", [3, 20, 50, 60])
def test_absorbed_episode_is_cut_one_segment_past_its_end(moving: int, seed: int) -> None:
    observations = np.minimum(np.arange(61.0), moving)[:, None]
    actions, rewards = -np.arange(60.0)[:, None], np.arange(60.0)
    pool = SegmentPool(7, seed=seed)
    growing = Trajectory("any", {"fixed_horizon": "absorb"}, 1)
    source = Source("any", SPACE, SPACE, True, 30, absorbs=True)
    recorder = SegmentRecorder(source, 7, np.random.default_rng(seed))
    recorder.begin(observations[0], seed=1)
    segments = []
    for step in range(60):
        growing.extend(observations[step : step + 2], actions[[step]], rewards[[step]], [])
        growing.truncated = step == 59
        pool.extend([growing])
        step_taken = Step(actions[step], observations[step + 1], rewards[step], False, step == 59)
        segments += recorder.add(step_taken)
    starts = [segment.start for segment in pool.segments]
    assert starts == [segment.start for segment in segments]
    if moving < 60:
        recorder = SegmentRecorder(replace(source, horizon=60), 7, np.random.default_rng(seed))
        recorder.begin(observations[0], seed=1)
        added = []
        for step in range(moving):
            one = Step(actions[step], observations[step + 1], 1.0, step == moving - 1, False)
            added += recorder.add(one)
        assert recorder.steps == min(moving + 7, 60)
        assert starts == [segment.start for segment in added]
        kept = [sum(s.true_rewards) == min(7, moving - s.start) and not s.terminated for s in added]
        assert all(kept), "0 after the end"
    assert starts == list(range(starts[0], min(moving + 7, 60) - 6, 7))
    assert all(start <= moving for start in starts), "none is cut where nothing happens any more"
    recorded = SegmentPool(7, seed=seed)
    recorded.extend([Trajectory.from_arrays(observations, actions, rewards)])
    assert len(recorded) in (len(pool), len(pool) + 1)


def test_other_episodes_are_cut_as_ever_where_they_stand_still() -> None:
    pool = SegmentPool(7, seed=1)
    standing = Trajectory("any", {"fixed_horizon": "restart"}, 1)
    standing.extend(np.zeros((61, 1)), np.zeros((60, 1)), np.zeros(60), [])
    standing.truncated = True
    pool.extend([standing])
    assert len(pool) >= 7


@pytest.mark.parametrize("terminated", [True, False])
def test_the_pool_and_the_wrapper_cut_the_same_segments(terminated: bool) -> None:
    observations = np.arange(61.0)[:, None]
    actions, rewards = -observations[1:], np.arange(60.0)
    pool = SegmentPool(7, seed=4)
    pool.extend([Trajectory.from_arrays(observations, actions, rewards, terminated)])
    recorder = SegmentRecorder(Source("any", SPACE, SPACE, True, 30), 7, np.random.default_rng(4))
    recorder.begin(observations[0], seed=1)
    segments = []
    for step in range(60):
        ends = (step == 59 and terminated, step == 59 and not terminated)
        segments += recorder.add(Step(actions[step], observations[step + 1], rewards[step], *ends))
    assert len(segments) == len(pool.segments) >= 7
    for found, expected in zip(segments, pool.segments, strict=True):
        assert (found.start, found.terminated) == (expected.start, expected.terminated)
        for name in ("observations", "actions", "true_rewards", "final_observation"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_array_equal(found.recipe.actions, expected.recipe.actions)


ROW = (2, 3)
Limits = Callable[[int, int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Sets what a column may have in memory, and at work, in bytes."""

    def limit(in_memory: int, at_work: int) -> None:
        monkeypatch.setattr(Column, "MAX_IN_MEMORY", in_memory)
        monkeypatch.setattr(Column, "MAX_AT_WORK", at_work)

    return limit


def rows(count: int, first: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (np.arange(count * 6, dtype=np.float32) + 6 * first).reshape(count, *ROW)


@pytest.fixture
def of_file(tmp_path: Path) -> Iterator[Column]:
    """Five rows, 13 bytes into a file."""
    path = tmp_path / "rows"
    path.write_bytes(b"x" * 13 + rows(5).tobytes())
    with path.open("rb") as file:
        column = Column.of_file(file, 13, (5, *ROW), np.dtype(np.float32))
    yield column
    assert path.read_bytes() == b"x" * 13 + rows(5).tobytes()


@pytest.mark.parametrize("in_memory", [2**20, 3000, 0], ids=["memory", "both", "file"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(["extend", "replace", "pop"]), st.integers(0, 60))))
def test_a_column_is_a_list_of_rows(limit: Limits, in_memory: int, changes: list[tuple[str, int]]) -> None:
    limit(in_memory, 100)
    column, model = (
        Column(ROW, np.dtype(np.float32)),
        list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]](),
    )
    for change, number in changes:
        if change == "extend":
            column.extend(rows(number, first=number))
            model.extend(rows(number, first=number))
        elif model and change == "replace":
            column.replace(number % len(model), rows(1, first=-number)[0])
            model[number % len(model)] = rows(1, first=-number)[0]
        elif model:
            column.pop()
            model.pop()
    assert len(column) == len(model)
    if model:
        np.testing.assert_array_equal(column.rows, model)
        order = np.arange(len(model))[::-1]
        np.testing.assert_array_equal(np.concatenate(list(column.parts(order))), model[::-1])
        np.testing.assert_array_equal(column.take(order[:, None]), np.array(model)[order[:, None]])


def test_a_file_is_read_where_it_lies_and_never_written(of_file: Column) -> None:
    np.testing.assert_array_equal(of_file.rows, rows(5))
    with pytest.raises(ValueError, match="read-only"):
        of_file.rows[0] = 1
    of_file.replace(2, rows(1, first=9)[0])
    of_file.extend(rows(1, first=7))
    np.testing.assert_array_equal(of_file.rows[[0, 2, 5]], np.stack([rows(1)[0], *rows(1, 9), *rows(1, 7)]))


@pytest.mark.parametrize("on_macos", [False, True])
def test_views_stay_while_file_grows(limit: Limits, monkeypatch: pytest.MonkeyPatch, on_macos: bool) -> None:
    if on_macos:
        monkeypatch.delattr("os.posix_fallocate")
    limit(0, 10**6)
    column = Column(ROW, np.dtype(np.float32))
    column.extend(rows(3))
    before = column.rows
    column.extend(rows(5000))
    np.testing.assert_array_equal(before, rows(3))
    np.testing.assert_array_equal(column.rows[:3], rows(3))


def resident_bytes() -> int:
    """Count files mapped into this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile"))


def test_memory_is_given_back_after_the_work(limit: Limits) -> None:
    """Without that, all 64 MB would be resident after each of both."""
    limit(0, 2**20)
    column = Column((2**18,), np.dtype(np.float32))  # a megabyte
    before = resident_bytes()
    for number in range(64):
        column.extend(np.full((1, 2**18), number, np.float32))
    assert resident_bytes() - before < 2**24
    assert [float(part.mean()) for part in column.parts(np.arange(64))] == list(range(64))
    assert resident_bytes() - before < 2**24


def test_a_full_disk_is_one_line_and_leaves_what_is_there(limit: Limits) -> None:
    limit(0, 10**6)
    column = Column(ROW, np.dtype(np.float32))
    column.extend(rows(10))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(StorageError, match=r"^cannot store .* GB of labeled segments .* TMPDIR to .*$"):
            column.extend(rows(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    np.testing.assert_array_equal(column.rows, rows(10))
    column.extend(rows(10_000))
    assert len(column) == 10_010


def test_folder_follows_tmpdir(limit: Limits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit(0, 10**6)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    column = Column(ROW, np.dtype(np.float32))
    column.extend(rows(10))
    maps = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/" in maps


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_is_found(number: float) -> None:
    array = rows(3).copy()
    require_numbers("observations", array)
    require_numbers("actions", np.array([1, 2]))
    array[1, 1, 1] = number
    with pytest.raises(DataError, match=r"^observations contains NaN or infinity$"):
        require_numbers("observations", array)


@pytest.mark.parametrize("way", ["by a file", "as bytes"])
def test_a_nested_state_comes_back(way: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    state = {
        "weights": torch.arange(6, dtype=torch.float64).reshape(2, 3),
        "optimizer": {"0": {"step": torch.tensor(7.0), "moments": [np.ones(2), np.zeros(1)]}},
        "random": generator.bit_generator.state,
        "torch_random": torch.Generator().manual_seed(1).get_state(),
        "count": np.int64(12),
        "flag": True,
        "nothing": None,
        "empty": {},
    }
    if way == "as bytes":
        restored = parse_state(dump_state(state))
    else:
        save_state(tmp_path / "state.npz", state)
        restored = load_state(tmp_path / "state.npz")

    np.testing.assert_array_equal(restored["weights"], state["weights"])
    assert restored["weights"].dtype == np.float64
    assert restored["optimizer"]["0"]["step"] == 7.0
    np.testing.assert_array_equal(restored["optimizer"]["0"]["moments"][0], np.ones(2))
    again = np.random.default_rng()
    again.bit_generator.state = restored["random"]
    assert again.random() == generator.random()
    np.testing.assert_array_equal(restored["torch_random"], state["torch_random"])
    assert (restored["count"], restored["flag"], restored["nothing"], restored["empty"]) == (
        12,
        True,
        None,
        {},
    )


def test_no_pickle_is_written_or_read(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    with pytest.raises(TypeError):
        save_state(path, {"object": object()})
    assert not path.exists()
    np.savez(path, structure=np.array([object()], dtype=object))
    with pytest.raises(DataError):
        load_state(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.npz is not a readable checkpoint: .*No such file"):
        load_state(tmp_path / "nothing.npz")


def test_a_failed_save_keeps_the_old_state(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    save_state(path, {"step": 1})
    (tmp_path / ".state.npz.part").mkdir()
    with pytest.raises(
        StorageError, match=r"^cannot write .*: Is a directory; fix the problem and try again$"
    ):
        save_state(path, {"step": 2})
    assert load_state(path)["step"] == 1


def test_a_full_disk_is_to_be_given_space(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    (tmp_path / ".state.npz.part").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"No space left on device; free up space and try again$"):
        save_state(path, {"step": 1})


def test_a_killed_writer_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    program = (
        "import itertools, sys, pathlib, numpy as np; from teacher.data.checkpoint import save_state\n"
        "for i in itertools.count():\n"
        "    save_state(pathlib.Path(sys.argv[1]), {'step': i, 'a': np.full(200_000, i)})\n"
        "    print(i, flush=True)"
    )
    for saved in (1, 3, 8):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(saved):
                last = int(writer.stdout.readline())
            writer.kill()  # it is about to save the next
        state = load_state(path)
        assert state["step"] >= last
        assert (state["a"] == state["step"]).all()
        path.unlink()
