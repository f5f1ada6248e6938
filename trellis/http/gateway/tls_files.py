"""The certificate files of the gateway: files in memory, with contents that the broker has checked.

An idle gateway ends, and a later gateway starts. Meanwhile, the files on disk may have changed. A
new certificate must not be in force before the broker has accepted it in a reload, and a
half-written file must not stop the gateway.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from trellis.settings.listeners import Tls


def in_memory(tls: Tls, contents: Mapping[str, bytes]) -> Tls:
    """Return the settings with files in memory in place of the files named in `contents`.

    The files in memory exist until the process ends. Systems without such files use the files on
    disk.
    """
    if sys.platform != "linux":
        return tls
    paths = {name: _memory_file(content) for name, content in contents.items()}

    def path(name: str) -> str:
        return paths.get(name, name)

    return msgspec.structs.replace(
        tls,
        certificate=path(tls.certificate),
        key=path(tls.key),
        ca=path(tls.ca),
        crl=path(tls.crl),
        names={
            server: {part: path(name) for part, name in files.items()}
            for server, files in tls.names.items()
        },
    )


def _memory_file(content: bytes) -> str:
    """Return the path of a new file in memory with this content."""
    descriptor = os.memfd_create("certificate")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return f"/proc/self/fd/{descriptor}"
