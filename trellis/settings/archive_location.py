"""The URL of an archive: `file:///path`, or `s3://bucket/prefix?endpoint=URL&region=NAME`."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

#: The options in the query of an s3 URL.
S3_OPTIONS: Final = ("endpoint", "region")
_FORMS: Final = (
    'must be "file:///path" or "s3://bucket/prefix", which may end with '
    '"?endpoint=https://host:port&region=name"'
)


class ArchiveLocation(NamedTuple):
    """The parts of the URL of an archive.

    `path` is a directory, or BUCKET/PREFIX. `endpoint` and `region` are "" if the URL has none.
    """

    scheme: str
    path: str
    endpoint: str = ""
    region: str = ""


def parse_location(url: str) -> ArchiveLocation:
    """Return the parts of the URL of an archive. Raises ValueError."""
    parts = _split(url)
    path = unquote(parts.path)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "file":
        if parts.netloc or not path.strip("/") or parts.query or parts.fragment:
            raise ValueError(_FORMS)
        return ArchiveLocation("file", path.rstrip("/"))
    if parts.scheme != "s3" or not parts.netloc or parts.fragment:
        raise ValueError(_FORMS)
    for name in options:
        if name not in S3_OPTIONS:
            raise ValueError(f"has the unknown option '{name}'; it {_FORMS}")
    endpoint = options.get("endpoint", "")
    if endpoint:
        server = _split(endpoint)
        beyond_port = server.path.strip("/") or server.query or server.fragment
        if server.scheme not in ("http", "https") or not server.hostname or beyond_port:
            problem = f"has the endpoint '{endpoint}', which is not the URL of a host"
            raise ValueError(f"{problem}; it {_FORMS}")
    prefix = path.strip("/")
    return ArchiveLocation(
        "s3",
        f"{parts.netloc}/{prefix}" if prefix else parts.netloc,
        endpoint,
        options.get("region", ""),
    )


def _split(url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises ValueError if the URL is malformed or contains credentials.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # Raises ValueError if the port is not a number.
    except ValueError as error:
        raise ValueError(f"contains an invalid URL ({error}); it {_FORMS}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "must not contain credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
            "environment of the broker, or use another source that the AWS SDK knows"
        )
    return parts


def check_archive(url: str) -> None:
    """Raise ValueError unless the text is empty or the URL of an archive."""
    if url:
        parse_location(url)
