"""Builds a kustomization as ``kubectl kustomize`` does, for the features that deploy/kubernetes uses.

What kustomize ignores is an error here: a patch, an image or a replica count that applies to nothing.
"""

import base64
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
Resources = dict[tuple[str, str], Resource]
"""Resources by kind and name."""
ROOT = Path(__file__).parents[2]
OVERLAYS = ("example", "example/trainer", "example/trainer-gpu", "monitoring", "autoscaling")
_HEADER = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
_CLUSTER_WIDE = {"Namespace"}


def copy_with_secrets(folder: Path) -> Path:
    """Copy deploy/kubernetes into a new folder, and give its example all secrets but the optional ones."""
    shutil.copytree(ROOT / "deploy/kubernetes", folder, ignore=shutil.ignore_patterns("secrets.env"))
    needed, _, _ = (folder / "example/secrets.env.example").read_text().partition("# Optional:")
    lines = [f"{name}={value}" for name, value in offered_in(needed).items()]
    (folder / "example/secrets.env").write_text("\n".join(lines))
    return folder


def offered_in(text: str) -> dict[str, str]:
    """The variables of a file for a generator, among them those in comments; secrets get a value."""
    found = re.findall(r"^#?([A-Z0-9_]+)=(.*)$", text, re.MULTILINE)
    return {name: value or "0123456789abcdef" * 4 for name, value in found}


def build_all(folder: Path) -> Resources:
    """The resources of all overlays in a copy of deploy/kubernetes."""
    return by_name([each for overlay in OVERLAYS for each in build(folder / overlay)])


def build(folder: Path) -> list[Resource]:
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name, value in _HEADER.items():
        assert plan.pop(name) == value, folder
    made: list[Resource] = []
    for name in plan.pop("resources"):
        path = (folder / name).resolve()
        made += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    if plan.keys() & {"configMapGenerator", "secretGenerator"}:
        assert plan.pop("generatorOptions") == {"disableNameSuffixHash": True}, folder
        made += [_generated("ConfigMap", folder, each) for each in plan.pop("configMapGenerator")]
        made += [_encoded(_generated("Secret", folder, each)) for each in plan.pop("secretGenerator")]
    for name, transform in _TRANSFORMERS.items():
        if name in plan:
            transform(made, plan.pop(name))
    assert not plan, f"{folder}: this module lacks {', '.join(plan)}"
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert len(set(names)) == len(names), names
    return made


def by_name(resources: list[Resource]) -> Resources:
    return {(each["kind"], each["metadata"]["name"]): each for each in resources}


def pod_of(resource: Resource) -> Resource | None:
    """The pod that a Deployment, Job or CronJob makes; None for other resources."""
    template = template_of(resource)
    return None if template is None else template["spec"]


def template_of(resource: Resource) -> Resource | None:
    """Find the template of such a pod."""
    spec = resource.get("spec", {})
    template: Resource | None = spec.get("jobTemplate", {"spec": spec})["spec"].get("template")
    return template


def containers_of(pod: Resource) -> list[Resource]:
    """The containers of a pod, with those that run before the others."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def read_variables(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def _generated(kind: str, folder: Path, plan: Mapping[str, Any]) -> Resource:
    (name,) = plan["envs"]
    assert set(plan) == {"name", "envs"}
    data = read_variables(folder / name)
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": plan["name"]}, "data": data}


def _encoded(secret: Resource) -> Resource:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in secret["data"].items()}
    return secret | {"type": "Opaque", "data": data}


def _set_namespace(made: list[Resource], namespace: str) -> None:
    for each in made:
        if each["kind"] not in _CLUSTER_WIDE:
            each["metadata"]["namespace"] = namespace


def _add_suffix(made: list[Resource], suffix: str) -> None:
    (job,) = made  # nothing refers to it, so no reference has to be changed
    job["metadata"]["name"] += suffix


def _set_images(made: list[Resource], images: list[dict[str, str]]) -> None:
    containers = [each for resource in made if (pod := pod_of(resource)) for each in containers_of(pod)]
    for image in images:
        found = [each for each in containers if each["image"] == image["name"]]
        assert found, f"no container has the image {image['name']}"
        for each in found:
            each["image"] = f"{image['newName']}:{image['newTag']}"


def _set_replicas(made: list[Resource], replicas: list[dict[str, Any]]) -> None:
    for each in replicas:
        _select(made, {"kind": "Deployment", "name": each["name"]})["spec"]["replicas"] = each["count"]


def _patch(made: list[Resource], patches: list[dict[str, Any]]) -> None:
    for patch in patches:
        resource = _select(made, patch["target"])
        for step in yaml.safe_load(patch["patch"]):
            *parents, last = [_index(part) for part in step["path"].removeprefix("/").split("/")]
            place: Any = resource
            for part in parents:
                place = place[part]
            assert (step["op"] == "replace") == (last in place), step
            place[last] = step["value"]


def _index(part: str) -> str | int:
    return int(part) if part.isdigit() else part.replace("~1", "/")


def _select(made: list[Resource], target: Mapping[str, str]) -> Resource:
    (found,) = [
        each for each in made if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])
    ]
    return found


_TRANSFORMERS: dict[str, Callable[[list[Resource], Any], None]] = {
    "patches": _patch,
    "namespace": _set_namespace,
    "nameSuffix": _add_suffix,
    "images": _set_images,
    "replicas": _set_replicas,
}
"""In kustomize's order: patches name resources without the suffix."""
