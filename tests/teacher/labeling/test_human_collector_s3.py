"""The whole way of a comparison with the clips in a real S3 store."""

from typing import Any

import pytest

from teacher.labeling.embedded_site import SiteHandle


@pytest.mark.usefixtures("s3_variables")
def test_clips_come_from_s3(s3_server: Any, s3_site: SiteHandle, start_asking: Any, pairs: Any) -> None:
    with start_asking(at=s3_site) as asking:
        asking.collector.submit(pairs[:2], "training", 100)
        bots = asking.bots(1)
        preferences = asking.receive(2)
        asking.collector.finish()
        bots[0].join(240)
    for preference in preferences:
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    stored = list((s3_server.root / s3_server.bucket / "people" / asking.settings.name).rglob("*.mp4"))
    assert len(stored) == 4
    assert not (s3_site.admin_password_file.parent / "media").exists()
    assert bots[0].error is None
