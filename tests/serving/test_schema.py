"""The OpenAPI document says what the server does: routes, statuses, and bodies that fit what is sent."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest

from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.executors.http_api import (
    SCHEMA,
    GateSubmission,
    OpenSession,
    Problem,
    Result,
    Results,
    ServerStatus,
    SessionOpened,
    SessionStatus,
    Submission,
    encode,
)
from tests.serving.conftest import Served

ROUTES = {
    ("post", "/v1/sessions"): {201, 400, 401, 408, 413, 422, 429, 500, 503},
    ("get", "/v1/sessions/{session}"): {200, 400, 401, 404, 429, 503},
    ("delete", "/v1/sessions/{session}"): {204, 400, 401, 404, 429, 503},
    ("put", "/v1/sessions/{session}/evaluations/{key}"): {200, 202, 400, 401, 404, 408, 409, 413, 429, 503},
    ("put", "/v1/sessions/{session}/gates/{key}"): {200, 202, 400, 401, 404, 408, 409, 413, 429, 503},
    ("get", "/v1/sessions/{session}/results"): {200, 400, 401, 404, 429, 503},
    ("get", "/v1/status"): {200, 400, 401, 429},
}

EVALUATION = Evaluation(
    Outcome.OK,
    Source.MEASURED,
    timings=(Timing("n=1", 1.0, 0.5, 1.5, (1.0, 1.1), 2.0),),
    checks=(Check("n=1", 7, passed=False, error=2.0, guard=Guard.COMPARISON),),
)
MESSAGES = [
    OpenSession({"task.toml": b"\x00\xff"}),
    SessionOpened("name", 1, {"gpu": "H100"}, ("A remark.",), "measured", "1"),
    SessionStatus(1, 2, 3, 4),
    Submission(Kernel("int x;")),
    GateSubmission(Kernel("int x;"), Kernel("int y;")),
    Results((Result(1, "key", gate=False, evaluation=EVALUATION),)),
    ServerStatus("1", "gpu", {}, 0, 0, 0),
    Problem("No."),
]


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    """What the server says of itself."""
    answer = served.client().http.get(SCHEMA)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_every_route_is_there_with_every_status(document: dict[str, Any]) -> None:
    found = {
        (method, path): {int(status) for status in operation["responses"]}
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }

    assert document["openapi"].startswith("3.1")
    assert found == ROUTES


def test_a_token_is_asked_for_everywhere(document: dict[str, Any]) -> None:
    assert document["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_fits_the_schema(document: dict[str, Any], message: msgspec.Struct) -> None:
    name = type(message).__name__
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator.check_schema(schema["components"]["schemas"][name])
    validator = jsonschema.Draft202012Validator(schema)

    validator.validate(msgspec.json.decode(encode(message)))
    assert list(validator.iter_errors(1))
