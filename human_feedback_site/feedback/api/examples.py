"""Request and response examples for the API documentation, each validated by the tests."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample

_EXPERIMENT: Final = "hopper-flip"
_COMPARISON: Final = "0d8a5bbf-3f9c-4b64-8f7d-2a8f6f1f3c11"
_LEASE: Final = "7a2f5a0e-9a51-4f3f-9d5c-0b7f3f0d6a55"
_LABEL: Final = "c1b0c4de-6a1b-4d4e-8f65-5d1c1f0b9e77"
_UNDO: Final = "e0f1b7b2-0a63-4a5c-9d0e-6f2b3f1d8c99"
_RUN: Final = "5b6d3c3e-43a7-4a0f-8f0f-7f9e2d1c0b33"
_LEFT: Final = "/media/ImhvcHBlci1mbGlwL..."
_RIGHT: Final = "/media/ImhvcHBlci1mbGlwM..."
_TRUTH: Final = [{"true_return": 31.5}, {"true_return": 12.25}]


def _clip(side: str, true_return: float) -> dict[str, Any]:
    return {"key": f"{_EXPERIMENT}/{_COMPARISON}/{side}.mp4", "true_return": true_return}


LEASE_VALUE: Final[dict[str, Any]] = {
    "uuid": _LEASE,
    "comparison": _COMPARISON,
    "kind": "pair",
    "items": [{"url": _LEFT}, {"url": _RIGHT}],
    "left": {"url": _LEFT},
    "right": {"url": _RIGHT},
    "expires_in": 60,
}
REQUESTS: Final[dict[str, Any]] = {
    "experiment": {
        "run_id": _RUN,
        "env_id": "ShortHopper-v1",
        "prompt": "Choose the clip in which the hopper comes closer to a backflip.",
        "n_labels": 700,
        "fps": 40,
        "has_true_reward": True,
        "invite": "you",
    },
    "invite": {"labeler": "labeler-1"},
    "comparisons": {
        "comparisons": [
            {
                "uuid": _COMPARISON,
                "phase": "training",
                "step": 20480,
                "priority": 1,
                "first": _clip("first", 31.5),
                "second": _clip("second", 12.25),
                "gold": None,
                "reason": "disagreement:5:5",
            }
        ]
    },
    "cancel": {"comparisons": [_COMPARISON]},
    "points": {
        "points": [{"step": 20480, "values": {"agent/true_reward_per_episode": 98.5}}],
        "waiting_for": None,
        "predicted": {
            "step": 20480,
            "films": [{"step": 20480, "rewards": [-0.2, 0.6, 1.1]}],
            "comparisons": [{"uuid": _COMPARISON, "items": [[0.4, 0.9], [-0.3, -0.1]]}],
        },
    },
    "leases": {"count": 3, "held": [_LEASE], "shown": _LEASE},
    "label": {
        "uuid": _LABEL,
        "lease": _LEASE,
        "choice": "left",
        "response_ms": 2140,
        "shown_ms": 2080,
    },
    "episode": {"step": 20480, "key": f"{_EXPERIMENT}/episodes/20480.mp4"},
    "undo": {"uuid": _UNDO},
}
RESPONSES: Final[dict[str, Any]] = {
    "experiment": {
        "name": _EXPERIMENT,
        "run_id": _RUN,
        "state": "running",
        "prompt": REQUESTS["experiment"]["prompt"],
        "last_seq": 0,
        "page_url": f"http://127.0.0.1:8000/experiments/{_EXPERIMENT}/",
        "label_url": f"http://127.0.0.1:8000/experiments/{_EXPERIMENT}/label",
        "invite_url": "http://127.0.0.1:8000/j/1-2-ajs4-...",
        "watch_url": "http://127.0.0.1:8000/j/1-2-ajs4-...",
    },
    "invite": {"invite_url": "http://127.0.0.1:8000/join/eyJleHBlcmltZW50Ijox..."},
    "registered": {"registered": 1, "existing": 0},
    "decisions": {
        "state": "running",
        "last_seq": 1,
        "items": [
            {
                "seq": 1,
                "comparison": _COMPARISON,
                "decision": "first",
                "probability": 1.0,
                "n_labels": 1,
                "answers": None,
                "prompt_version": 1,
            },
        ],
        "active_labelers": 1,
        "open": 12,
        "open_training": 4,
    },
    "cancelled": {"cancelled": 1},
    "stored": {"stored": 1},
    "comparisons": {
        "items": [
            {
                "id": 1,
                "uuid": _COMPARISON,
                "kind": "pair",
                "phase": "training",
                "step": 20480,
                "priority": 1,
                "status": "answered",
                "items": [{"url": _LEFT, **_TRUTH[0]}, {"url": _RIGHT, **_TRUTH[1]}],
                "first": {"url": _LEFT, **_TRUTH[0]},
                "second": {"url": _RIGHT, **_TRUTH[1]},
                "gold": None,
                "reason": "disagreement:5:5",
                "settled": None,
                "decision": "first",
                "probability": 1.0,
                "n_labels": 1,
            }
        ]
    },
    "lease": {
        "uuid": _LEASE,
        "comparison": _COMPARISON,
        "kind": "pair",
        "items": _TRUTH,
        "left": _TRUTH[0],
        "right": _TRUTH[1],
    },
    "leases": {
        "leases": [LEASE_VALUE],
        "renewed": [],
        "lost": [],
        "state": "running",
        "prompt": REQUESTS["experiment"]["prompt"],
        "fps": 40,
        "answered": 17,
        "wanted": 40,
        "waiting_for": None,
        "notice": None,
    },
    "label": {"uuid": _LABEL, "status": "counted", "answered": 18},
    "undo": {"uuid": _UNDO, "lease": LEASE_VALUE, "answered": 17},
    "examples": {
        "items": [
            {
                "kind": "pair",
                "items": [{"url": _LEFT}, {"url": _RIGHT}],
                "left": {"url": _LEFT},
                "right": {"url": _RIGHT},
                "better": "left",
                "explanation": "It leaves the ground; the other only leans back.",
                "practice": False,
            }
        ]
    },
    "progress": {
        "state": "running",
        "answered": 120,
        "wanted": 700,
        "waiting": 3,
        "start": None,
        "episode": {"step": 20480, "answered": 98, "url": "/media/ImhvcHBlci1mbGlwN..."},
        "episodes": [{"step": 20480, "answered": 98, "url": "/media/ImhvcHBlci1mbGlwN..."}],
    },
}
COMPARISONS_CSV: Final = (
    "comparison,phase,step,priority,status,gold,wanted,n_labels,decision,probability,decided_at,"
    "first_key,second_key,first_return,second_return,created_at,kind,third_key,fourth_key,third_return,"
    "fourth_return,reason,settled\r\n"
    f"{_COMPARISON},training,20480,1,answered,,1,1,first,1.0,2026-05-04T09:31:12.250000Z,"
    f"{_EXPERIMENT}/{_COMPARISON}/first.mp4,{_EXPERIMENT}/{_COMPARISON}/second.mp4,31.5,12.25,"
    "2026-05-04T09:30:58.125000Z,pair,,,,,disagreement:3:2,\r\n"
)
LABELS_CSV: Final = (
    "label,comparison,labeler,choice,swapped,meaning,status,purpose,lease,prompt_version,response_ms,shown_ms,"
    "created_at,undo,undone_at,labeler_kind,reason\r\n"
    f"{_LABEL},{_COMPARISON},labeler-1,left,false,first,counted,judge,{_LEASE},1,2140,2080,"
    "2026-05-04T09:31:12.250000Z,,,human,\r\n"
)


def examples(*, request: str | None = None, response: str | None = None) -> list[OpenApiExample]:
    """Return OpenAPI examples, given keys of ``REQUESTS`` and ``RESPONSES``."""
    found = []
    if request is not None:
        found.append(OpenApiExample("Request", REQUESTS[request], request_only=True))
    if response is not None:
        found.append(
            OpenApiExample("Response", RESPONSES[response], response_only=True, status_codes=["200", "201"])
        )
    return found
