"""The log lines about refused HTTP requests, of the API, of the gateway and of the metrics."""

from __future__ import annotations

from trellis.diagnosis.clients import HTTP_REFUSED
from trellis.http.logins import LoginParts


def log_refused_request(
    node: LoginParts,
    address: str,
    request: str,
    status: int,
    note: str,
    user: str | None = None,
) -> None:
    """Log the refusal of a request from an address; repetitions within a minute are only counted.

    `request` has the method and the path; "" if the input was not a request. `status` is the HTTP
    status of the response, and `note` the reason. `user` is the user of the login, "" without a
    login; None if the user is unknown, because the login was not examined.
    """
    fields: dict[str, object] = {} if user is None else {"user": user}
    fields["address"] = address
    if request:
        fields["request"] = request
    node.refusals.add(HTTP_REFUSED, {**fields, "status": status, "note": note})
