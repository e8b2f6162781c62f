"""The HTTP API as Litestar answers it, with its OpenAPI schema made from the types."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Litestar, Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from mctskernel import __version__
from mctskernel.core.documents import MOST_TOLD
from mctskernel.executors.http_api import (
    MAX_WAIT_SECONDS,
    MEDIA_TYPE,
    NAME_PATTERN,
    SCHEMA,
    SESSIONS,
    STATUS,
    GateSubmission,
    OpenSession,
    Problem,
    Results,
    ServerStatus,
    SessionOpened,
    SessionStatus,
    Submission,
    encode,
    evaluation_path,
    gate_path,
    session_path,
)
from mctskernel.serving.admission import refusal_headers
from mctskernel.serving.ledger import Put
from mctskernel.serving.refusals import RefusalError
from mctskernel.serving.service import Service
from mctskernel.serving.settings import Limits

_LOG = logging.getLogger(__name__)

_BASE64 = 4 / 3
"""Bytes of JSON for each byte of a file."""

_SENTENCES = {
    400: "The request is malformed.",
    401: "There is no token, or a wrong one.",
    404: "There is no such session.",
    408: "The body took too long to come.",
    409: "This key holds another kernel.",
    413: "The body is too large.",
    422: "This task can't be used.",
    429: "Too many at once: come again after `Retry-After` seconds.",
    500: "The server failed, or the process of the session as it opened: its log says more.",
    503: "The server is closing, if there is a `Retry-After`; otherwise its machine or this session is broken.",
}

_EVERYWHERE = (400, 401, 429)

_Session = Annotated[str, PathParameter(description="The name of a session.", pattern=NAME_PATTERN)]
_Key = Annotated[str, PathParameter(description="The client's own name for a kernel.", pattern=NAME_PATTERN)]
_After = Annotated[int, QueryParameter(ge=0, description="Results up to this number are acknowledged.")]
_Wait = Annotated[
    float, QueryParameter(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for a result.")
]
_Request = Request[str, None, State]


def make_application(service: Service, limits: Limits) -> Litestar:
    """What answers requests that were let in, each under its client's name."""
    handlers = _handlers(service, limits)
    return Litestar(
        route_handlers=[*handlers, _schema(handlers)],
        exception_handlers={
            RefusalError: _refused,
            HTTPException: _malformed,
            RecursionError: _undecodable,
            UnicodeDecodeError: _undecodable,
            Exception: _failed,
        },
        # Its own pages are for browsers.
        openapi_config=None,
        request_max_body_size=limits.kernel_bytes,
        logging_config=None,
    )


def _handlers(service: Service, limits: Limits) -> list[ControllerRouterHandler]:
    one_session = session_path("{session:str}")

    @post(
        SESSIONS,
        responses=_refusals(408, 413, 422, 500, 503),
        request_max_body_size=int(limits.task_bytes * _BASE64) + limits.kernel_bytes,
    )
    async def open_session(request: _Request, data: JSONBody[OpenSession]) -> SessionOpened:
        """Open a session of a task; it may take a while."""
        return await service.open_session(request.user, data)

    @get(one_session, responses=_refusals(404, 503))
    async def session_status(request: _Request, session: _Session) -> SessionStatus:
        """How far a session is."""
        return service.session_status(request.user, session)

    @delete(one_session, responses=_refusals(404, 503))
    async def close_session(request: _Request, session: _Session) -> None:
        """Close a session; what it was judging is lost."""
        await service.close_session(request.user, session)

    @put(evaluation_path("{session:str}", "{key:str}"), status_code=202, responses=_PUT)
    async def evaluate(
        request: _Request, session: _Session, key: _Key, data: JSONBody[Submission]
    ) -> Response[None]:
        """Evaluate a kernel; the result comes under its key."""
        return _accepted(service.put(request.user, session, key, data))

    @put(gate_path("{session:str}", "{key:str}"), status_code=202, responses=_PUT)
    async def last_gate(
        request: _Request, session: _Session, key: _Key, data: JSONBody[GateSubmission]
    ) -> Response[None]:
        """Put a kernel through the last gate; the result comes under its key."""
        return _accepted(service.put(request.user, session, key, data))

    @get(
        f"{one_session}/results",
        responses={
            200: ResponseSpec(Results, generate_examples=False, description="Results."),
            **_refusals(404, 503),
        },
    )
    async def results(
        request: _Request, session: _Session, after: _After = 0, wait: _Wait = 0.0
    ) -> Response[bytes]:
        """Fetch results, and acknowledge earlier ones."""
        found = await service.results(request.user, session, after, wait)
        return Response(found, media_type=MEDIA_TYPE)

    @get(STATUS, responses=_refusals())
    async def status() -> ServerStatus:
        """How busy the machine is."""
        return service.status

    return [open_session, session_status, close_session, evaluate, last_gate, results, status]


def _schema(handlers: Sequence[ControllerRouterHandler]) -> ControllerRouterHandler:
    """What says in OpenAPI how to ask the others."""
    described = Litestar(
        route_handlers=handlers,
        openapi_config=OpenAPIConfig(
            title="mctskernel serve",
            version=__version__,
            description="A machine that builds, verifies and times GPU kernels for searches elsewhere.",
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
            use_handler_docstrings=True,
        ),
        logging_config=None,
    )
    document = msgspec.json.encode(described.openapi_schema.to_schema())

    @get(SCHEMA)
    async def schema() -> Response[bytes]:
        return Response(document, media_type=MEDIA_TYPE)

    return schema


def _refusals(*statuses: int) -> dict[int, ResponseSpec]:
    return {
        status: ResponseSpec(Problem, generate_examples=False, description=_SENTENCES[status])
        for status in sorted({*_EVERYWHERE, *statuses})
    }


_PUT = {
    200: ResponseSpec(None, description="The key holds this kernel already."),
    **_refusals(404, 408, 409, 413, 503),
}


def _accepted(found: Put) -> Response[None]:
    if found is Put.OTHER:
        raise RefusalError(409, "This key holds another kernel.")
    return Response(None, status_code=202 if found is Put.NEW else 200)


def _refused(_: Request[Any, Any, Any], refusal: RefusalError) -> Response[bytes]:
    return _problem(refusal.status, refusal.sentence, refusal_headers(refusal))


def _malformed(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    reasons = [str(each.get("message", "")) for each in error.extra or () if isinstance(each, dict)]
    sentence = _SENTENCES.get(error.status_code, error.detail)
    sentence = " ".join([sentence, error.detail, *reasons] if error.status_code == 400 else [sentence])
    return _problem(error.status_code, sentence[:MOST_TOLD], {})


def _undecodable(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    return _problem(400, f"{_SENTENCES[400]} {error}"[:MOST_TOLD], {})


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _problem(500, "The server itself failed; its log says more.", {})


def _problem(status: int, sentence: str, headers: dict[str, str]) -> Response[bytes]:
    return Response(encode(Problem(sentence)), status_code=status, media_type=MEDIA_TYPE, headers=headers)
