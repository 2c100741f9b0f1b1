"""Client of the service, for programs and for the command line.

    with Client("http://127.0.0.1:8000") as client:
        model = client.post_model(zoo="gpt2")
        cluster = client.post_cluster("local:2x2")
        job = client.wait(client.search(model, cluster, options={"global_batch": 64}))
        plan = client.get_strategy(job.result["strategy_id"])

``AsyncClient`` has the same methods for asyncio: ``async with``, ``await client.search(...)``, ``async for job in
client.jobs()``. ``scripts/client`` generates ``Client`` from ``AsyncClient``; edit only the latter.

Every method raises ``ServiceError`` if the service cannot be reached or refuses the request. A refusal that names a
value is raised as the same ``InputError`` or ``InfeasibleError`` that the library would raise locally. ``documents``
has the types of the responses.
"""

from autosbp.client import documents
from autosbp.client._async._client import AsyncClient
from autosbp.client._conditional_requests import NotModifiedError, Version
from autosbp.client._http_messages import (
    KEY_VARIABLE,
    ConflictError,
    Document,
    Job,
    LostAnswerError,
    NotFoundError,
    TooLargeError,
    UnreachableError,
    error_of,
    new_key,
)
from autosbp.client._sync._client import Client
from autosbp.client._types import JobKind, JobState, Scope, StillRunningError, Target

__all__ = [
    "KEY_VARIABLE",
    "AsyncClient",
    "Client",
    "ConflictError",
    "Document",
    "Job",
    "JobKind",
    "JobState",
    "LostAnswerError",
    "NotFoundError",
    "NotModifiedError",
    "Scope",
    "StillRunningError",
    "Target",
    "TooLargeError",
    "UnreachableError",
    "Version",
    "documents",
    "error_of",
    "new_key",
]
