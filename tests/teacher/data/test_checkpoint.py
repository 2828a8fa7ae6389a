import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from teacher.data.checkpoint import dump_state, load_state, parse_state, save_state
from teacher.errors import DataError, StorageError


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
