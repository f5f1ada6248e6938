"""The audit log of commands that change a data directory or a cluster without the broker.

    trellis store repair, cluster seed|forget|adopt, cluster check --create, serve --adopt
        --> OfflineAudit.add --> one line of JSON in `audit-offline.jsonl`

The file is beside the audit log that `log.audit` names, and has the same fields. It is a separate
file for two reasons. The broker writes its audit log in groups of lines, and cuts a group off again
if the disk is full: a line that another process has appended meanwhile would be cut, too. And these
commands often run as root: a file of root in place of the audit log would stop the broker, which
runs as another user.

Each line is one write to a file that is open for appending. A lock on the file (flock) admits one
command at a time, so that two commands do not mix their lines. If root creates the file, it gets
the owner of the audit log, or of the data directory, so that this user can run the commands, too.
"""

from __future__ import annotations

import fcntl
import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from broker.store.audit import AuditRecord
from broker.store.disk import StoreError
from trellis.server.audit_log import timed_line
from trellis.settings import Settings, SettingsError

#: Added to the name of the audit log, before its suffix.
_ENDING: Final = "-offline"
#: The protocol in the lines, as the broker's own lines have `amqp` or `http`.
PROTOCOL: Final = "command"
_MODE: Final = 0o600


def offline_path(audit: Path) -> Path:
    """Return the file beside an audit log: `audit-offline.jsonl` for `audit.jsonl`."""
    return audit.with_name(f"{audit.stem}{_ENDING}{audit.suffix}")


class OfflineAudit:
    """The open file of the lines of one command; no file if the settings name no audit log."""

    def __init__(self, settings: Settings, command: str) -> None:
        """Open the file, before the command changes something; create it if it is missing.

        `command` is the command without its arguments, such as `trellis store repair`. Raises
        SettingsError if the file cannot be opened.
        """
        self._command = command
        self._descriptor = -1
        if not settings.log.audit:
            return
        audit = Path(settings.log.audit).expanduser()
        self._path = offline_path(audit)
        try:
            self._descriptor = _open(self._path, _owner(audit, settings.data.directory))
        except OSError as error:
            raise SettingsError(
                f"log.audit: cannot write to {self._path}: {error.strerror}: nothing was changed; "
                "create the directory, run the command as the owner of the file, or set log.audit "
                "to an empty text"
            ) from None

    def __enter__(self) -> OfflineAudit:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def add(
        self, action: str, kind: str, name: str, facts: Mapping[str, object] | None = None
    ) -> None:
        """Append a line about a change, such as the action "forget" of the kind "node".

        Raises StoreError if the line cannot be written, although the change has been made.
        """
        if self._descriptor < 0:
            return
        record: AuditRecord = {"action": action, "kind": kind, "name": name, **_user()}
        record |= {"protocol": PROTOCOL, "command": self._command}
        if facts:
            record["facts"] = dict(facts)
        line = timed_line(record)
        try:
            with suppress(OSError):  # A file system may have no locks.
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            # After a write that a full disk has cut short, the line begins on a line of its own.
            # Without the lock, the end could be within a line that another command writes now.
            end = os.lseek(self._descriptor, 0, os.SEEK_END)
            if end and os.pread(self._descriptor, 1, end - 1) != b"\n":
                line = b"\n" + line
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(None, f"only {written} of {len(line)} bytes were written")
        except OSError as error:
            raise StoreError(
                f"the change is made ({action}, {kind} '{name}'), but its line in {self._path} is "
                f"missing or incomplete: {error.strerror}"
            ) from None
        finally:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _user() -> dict[str, object]:
    """Return the operating system user of this process, and the user that called `sudo`, if any."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # A container may have users without names.
        name = str(uid)
    caller = os.environ.get("SUDO_USER", "") if uid == 0 else ""
    return {"user": name, "sudo_user": caller} if caller else {"user": name}


def _owner(audit: Path, directory: Path | None) -> tuple[int, int] | None:
    """Return the user and group of the audit log, or else of the data directory.

    Return None if both are missing.
    """
    for path in (audit, directory):
        if path is not None:
            with suppress(OSError):
                status = os.stat(path)
                return status.st_uid, status.st_gid
    return None


def _open(path: Path, owner: tuple[int, int] | None) -> int:
    """Open the file for appending, and return its descriptor. Raises OSError.

    If the file is missing, create it, readable by `owner` only. A symbolic link is refused: root
    must not write where another user's link leads.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
    except FileExistsError:
        return os.open(path, flags)
    if owner is not None and os.geteuid() == 0:
        try:
            os.fchown(descriptor, *owner)
        except OSError:  # Root in a container may lack the capability.
            os.close(descriptor)
            os.unlink(path)
            raise
    return descriptor
