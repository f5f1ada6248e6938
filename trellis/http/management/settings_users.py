"""Advice about users that the settings define: where to change them, and how to apply the change.

The API cannot change such users. The error of a request that would change one ends with the advice.
"""

from __future__ import annotations

import os
from typing import Final

from trellis.auth.settings_users import GUEST_NAME
from trellis.http.management.answers import Call
from trellis.server.settings_in_force import DEFAULT
from trellis.settings import Settings
from trellis.settings.loading import SEARCHED
from trellis.settings.options import OPTIONS

#: The setting that defines the user guest, and the setting with the name of the main user.
_GUEST: Final = "auth.guest"
_USER: Final = "user"
#: The change of a settings file, by the key of the setting that defines the user.
_CHANGES: Final = {
    "users": "change the user's table [[users]]",
    _GUEST: "to refuse guest, write `auth.guest = false`",
    _USER: "write `user` and `password`",
}
#: The first part of the advice about a user with all permissions, whose permissions are fixed.
_OTHER_USER: Final = "for a user with other permissions, run `trellis users add NAME`"


def change_advice(call: Call, name: str) -> str:
    """Return how to change a user that the settings define, as the end of an error.

    The text names the file, the environment variable or the flag that defines the user, and the
    process that must read the settings again.
    """
    in_force = call.node.settings_in_force
    key = _key_of(in_force.reloaded, name)
    source, option = in_force.source(key), OPTIONS[key]
    other = "" if key == "users" else f"{_OTHER_USER}; "
    if source in (option.flag, option.variable):
        giver = f"{'flag' if source == option.flag else 'environment variable'} {source}"
        return f"{other}to change this user, start the broker with another value of the {giver}"
    if source != DEFAULT:
        place = f"in {os.path.abspath(source)}"
    elif in_force.files:
        place = f"in {os.path.abspath(in_force.files[-1])}"
    else:
        place = f"in {SEARCHED[0].absolute()} (create the file if it does not exist)"
    reload = f"then run `kill -HUP {os.getpid()}` where the broker runs"
    return f"{other}{_CHANGES[key]} {place}, {reload}"


def _key_of(settings: Settings, name: str) -> str:
    """Return the key of the setting that defines a user."""
    if any(user.name == name for user in settings.users):
        return "users"
    return _GUEST if name == GUEST_NAME and name != settings.user else _USER
