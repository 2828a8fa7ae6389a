"""The whole way of a comparison with the clips in a real S3 store."""

from pathlib import Path
from typing import Any

import pytest

from teacher.embedded_site import ensure_site
from teacher.storage import open_storage


def test_labelers_get_the_clips_straight_from_s3(
    s3_server: Any, start_asking: Any, pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    site = ensure_site(tmp_path / "state", storage=f"s3://{s3_server.bucket}/people")
    try:
        with start_asking(at=site, storage=open_storage(site.storage)) as asking:
            asking.collector.submit(pairs[:2], "training", 100)
            bots = asking.bots(1)
            preferences = asking.receive(2)
            asking.collector.finish()
            bots[0].join(240)
    finally:
        site.release()
    for preference in preferences:
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    stored = list((s3_server.root / s3_server.bucket / "people").rglob("*.mp4"))
    assert len(stored) == 4
    assert not (tmp_path / "state" / "media").exists()
    assert bots[0].error is None
