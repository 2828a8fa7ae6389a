"""The setting ``--track``, and the settings that experiment trackers are not sent."""

from typing import Annotated, Literal

TrackerName = Literal["wandb", "mlflow", "trackio"]
Track = Annotated[
    TrackerName | None, "experiment tracker to use besides TensorBoard: Weights & Biases, MLflow or Trackio"
]
PRIVATE = ("site_url", "storage", "state_dir", "bind", "public_url", "runs_dir")
"""Settings of the site and of this machine, such as URLs that may contain passwords."""
