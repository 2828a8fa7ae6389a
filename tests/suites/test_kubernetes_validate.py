"""The Kubernetes manifests follow the schemas of two versions; ``make test-kubernetes`` runs this file."""

import re
from copy import deepcopy

import kubernetes_validate
import pytest

from tests.deployment.kustomization import Resources, build_all, copy_with_secrets
from tests.documents import page_of

OLDEST, NEWEST = "1.31", "1.37"


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Resources:
    return build_all(copy_with_secrets(tmp_path_factory.mktemp("deploy") / "kubernetes"))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_resources_follow_schema(resources: Resources, version: str, subtests: pytest.Subtests) -> None:
    for (kind, name), resource in resources.items():
        if resource["apiVersion"].startswith("monitoring.coreos.com/"):  # the Prometheus Operator's
            continue
        with subtests.test(f"{kind} {name}"):
            assert kubernetes_validate.validate(resource, version, strict=True) == version


def test_a_misspelled_field_would_be_noticed(resources: Resources) -> None:
    web = deepcopy(resources["Deployment", "web"])
    web["spec"]["replica"] = web["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(web, NEWEST, strict=True)


def test_the_page_names_the_oldest_version() -> None:
    assert re.findall(r"Kubernetes (1\.\d+) or newer", page_of("kubernetes").read_text()) == [OLDEST]
