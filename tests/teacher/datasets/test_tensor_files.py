"""Files of tensors: what is written is read, and damage is one line."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from teacher.datasets.network_files import load_tensors, save_tensors
from teacher.errors import ConfigError, DataError

TENSORS = {
    "a.b": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    "double": np.array([0.1, 1e300]),
    "count": np.array(7),
}


def test_the_same_tensors_and_metadata_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, {"env_id": "Any-v0"}, new=True)
    found = load_tensors(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor, strict=True)
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"env_id": "Any-v0"}
    with pytest.raises(ConfigError, match="already exists"):
        save_tensors(path, {}, {}, new=True)


def test_damage_is_one_line(tmp_path: Path, damaged: Callable[[bytes], Iterator[bytes]]) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, {}, new=True)
    refusals = []
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            load_tensors(path)  # a changed number can't be noticed
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert all(str(path) in refusal and "\n" not in refusal for refusal in refusals)
    path.unlink()
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        load_tensors(path)
