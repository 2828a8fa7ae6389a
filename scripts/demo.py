"""Program behind ``make demo``: teach a hopper from a browser on this machine.

The environment variable ``BOTS`` adds that many scripted labelers, and ``FEEDBACK`` sets the kind of
question. If OpenGL isn't available to render the hopper, the demo uses a pendulum, which doesn't need it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import requests

from teacher.clips.trial import check_drawing
from teacher.envs.tasks import describe_task
from teacher.errors import RenderError
from teacher.settings.options import KindName

STATE_DIR = Path("state")
PROMPTS = {
    "ShortHopper-v1": "The robot should move forward without falling over.",
    "Pendulum-v1": "The pendulum should stand up, or swing up as far as it can.",
}
HOPPER, PENDULUM = PROMPTS


def main() -> int:
    """Run ``teach``, start the bots once its experiment is on the site, and return its exit status."""
    bots = os.environ.get("BOTS") or "0"
    if not bots.isdigit():
        print(f"demo: BOTS must be a number of labelers such as 3, not {bots!r}", file=sys.stderr)
        return 2
    feedback = os.environ.get("FEEDBACK") or "pair"
    if feedback not in get_args(KindName):
        kinds = ", ".join(get_args(KindName))
        print(f"demo: FEEDBACK must be one of {kinds}, not {feedback!r}", file=sys.stderr)
        return 2
    count = int(bots)
    missing = why_no_hopper()
    if missing:
        print(f"demo: {missing}\n", file=sys.stderr)
    env_id = PENDULUM if missing else HOPPER
    name = f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    teach = [sys.executable, "-m", "teacher.teach", "-p", "human", "-e", env_id, "-n", name]
    settings = [
        "-L",
        "20",
        "-l",
        "300",
        "-t",
        "1e6",
        "--prompt",
        PROMPTS[env_id],
        "--feedback",
        feedback,
        "--state_dir",
        str(STATE_DIR),
    ]
    # Ctrl-C also reaches teach, which saves and exits; this script waits for it.
    trainer = subprocess.Popen([*teach, *settings])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: trainer.terminate())
    if count:
        threading.Thread(target=label, args=(f"{env_id}-{name}", count, trainer)).start()
    status = trainer.wait()
    if missing:
        print(f"\ndemo: {missing}", file=sys.stderr)
    return status


def why_no_hopper() -> str:
    """Return why this machine can't render the hopper and how to fix it; empty if it can."""
    try:
        check_drawing(describe_task(HOPPER), seed=1)
    except RenderError as error:
        return f"teaching {PENDULUM} instead of {HOPPER}: {error}"
    return ""


def label(experiment: str, count: int, trainer: "subprocess.Popen[bytes]") -> None:
    """Start the bots once the experiment is on the site, and stop them when the trainer ends."""
    while trainer.poll() is None:
        site = find_site(experiment)
        if site is not None:
            break
        time.sleep(0.5)
    else:
        return
    options = ["--site", site, "--experiment", experiment, "--token-file", str(STATE_DIR / "token")]
    bots = subprocess.Popen([sys.executable, "-m", "teacher.bots", *options, "--count", str(count)])
    trainer.wait()
    bots.terminate()


def find_site(experiment: str) -> str | None:
    """Return the URL of the local site, or None if it doesn't have the experiment yet."""
    try:
        site = str(json.loads((STATE_DIR / "site" / "lock").read_text())["url"])
        token = (STATE_DIR / "token").read_text().strip()
        with requests.Session() as session:
            session.trust_env = False  # don't use a proxy for localhost
            headers = {"Authorization": f"Bearer {token}"}
            path = f"{site}/api/v1/experiments/{experiment}/decisions?after=0"
            return site if session.get(path, headers=headers, timeout=5).ok else None
    except (OSError, ValueError, KeyError, requests.RequestException):
        return None


if __name__ == "__main__":
    sys.exit(main())
