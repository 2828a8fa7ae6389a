"""A site that knows what people said of clips which it never had is backed up and cleared like any other."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from human_feedback_site.feedback.api.examples import COMPARISONS_CSV, LABELS_CSV
from tests.deployment.backed_up import done, rows_of_file


@pytest.mark.parametrize("n_others", [0, 1], ids=["a new site", "a site with a labeled pair"])
def test_imported_labels_whose_clips_are_elsewhere_are_backed_up_and_deleted(
    embedded: Callable[[Path], dict[str, str]], tmp_path: Path, n_others: int
) -> None:
    site = {"TEACHER_STATE_DIR": str(tmp_path / "state")}
    if n_others:
        embedded(tmp_path / "state")
    else:  # where nobody has made a folder for clips yet
        done("setup_embedded", site, tmp_path)
    (tmp_path / "pairs.csv").write_text(COMPARISONS_CSV, newline="")
    (tmp_path / "labels.csv").write_text(LABELS_CSV, newline="")
    name = COMPARISONS_CSV.splitlines()[1].split(",")[11].split("/")[0]
    said = done(f"import_labels {name} pairs.csv labels.csv --owner admin", site, tmp_path)
    assert said == "1 comparison; 1 label; 0 undone.\n"
    said = done("backup backup", site, tmp_path)
    assert f"clips: {2 * n_others} from " in said
    assert f"including all {2 * n_others} that the site shows" in said

    shutil.rmtree(tmp_path / "state")
    done("restore backup", site, tmp_path)
    assert len(rows_of_file(tmp_path / "state/site.sqlite3")["feedback_label"]) == 1 + n_others
    done(f"delete_experiment {name} --no-input", site, tmp_path)
    assert len(rows_of_file(tmp_path / "state/site.sqlite3")["feedback_label"]) == n_others
