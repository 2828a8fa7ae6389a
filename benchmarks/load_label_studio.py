"""Create a Label Studio project of two-video tasks with labelers; run it with Label Studio's own Python.

``python load_label_studio.py TASKS LABELERS`` prints the project ID, the labelers' cookies and the package's
folder as JSON. Tasks are imported through Label Studio's API; labelers are signed-in members of its
organization.
"""

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONFIG = """<View><Text name="prompt" value="$prompt"/><View style="display: flex">
<Video name="first" value="$first"/><Video name="second" value="$second"/></View>
<Choices name="better" toName="first" choice="single">
<Choice value="left"/><Choice value="right"/><Choice value="equal"/><Choice value="cant_tell"/>
</Choices></View>"""
_AT_ONCE = 5000


def fill(tasks: int, labelers: int, folder: str) -> dict[str, object]:
    """Create the project, tasks and labelers; Django must be set up."""
    from django.test import Client  # noqa: PLC0415
    from organizations.models import Organization  # type: ignore[import-not-found]  # noqa: PLC0415
    from users.models import User  # type: ignore[import-not-found]  # noqa: PLC0415

    owner = User.objects.create_user(email="ada@example.org", password="password")  # noqa: S106
    organization = Organization.create_organization(created_by=owner, title="Lab")
    owner.active_organization = organization
    owner.save()
    client = _signed_in(Client(), owner)
    project = _post(client, "/api/projects/", {"title": "pairs", "label_config": CONFIG})["id"]
    for begin in range(0, tasks, _AT_ONCE):
        some = [_task(number) for number in range(begin, min(begin + _AT_ONCE, tasks))]
        _post(client, f"/api/projects/{project}/import", some)
    cookies = []
    for number in range(labelers):
        user = User.objects.create_user(email=f"labeler-{number}@example.org", password="password")  # noqa: S106
        organization.add_user(user)
        user.active_organization = organization
        user.save()
        signed_in = _signed_in(Client(), user)
        cookies.append("; ".join(f"{name}={kept.value}" for name, kept in signed_in.cookies.items()))
    return {"project": project, "cookies": cookies, "folder": folder}


def _task(number: int) -> dict[str, str]:
    clips = {side: f"http://127.0.0.1:9/clips/{number}/{side}.mp4" for side in ("first", "second")}
    return {"prompt": "Which is better?", **clips}


def _signed_in(client: Any, user: Any) -> Any:
    client.force_login(user)
    session = client.session
    session["last_login"] = time.time()
    session.save()
    client.cookies["sessionid"] = session.session_key
    return client


def _post(client: Any, path: str, body: object) -> Any:
    answer = client.post(path, json.dumps(body), content_type="application/json")
    assert answer.status_code in {200, 201}, answer.content[:500]
    return answer.json()


if __name__ == "__main__":
    found = find_spec("label_studio")
    assert found is not None
    assert found.origin is not None
    folder = str(Path(found.origin).parent)
    sys.path.insert(0, folder)
    os.chdir(folder)
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    print(json.dumps(fill(int(sys.argv[1]), int(sys.argv[2]), folder)))
