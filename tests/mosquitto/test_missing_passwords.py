"""The import of users whose passwords Trellis cannot take over."""

import json
from pathlib import Path

import pytest

from trellis.mosquitto.importing import MosquittoImport

#: The files of a folder by name, and the user without a password that each folder defines.
FOLDERS = [
    (
        {"mosquitto.conf": "listener 1883\npassword_file pw\n", "pw": "plain:word\n"},
        "plain",
    ),
    (
        {"mosquitto.conf": "listener 1883\nacl_file acl\n", "acl": "user rights\ntopic a\n"},
        "rights",
    ),
    (
        {
            "mosquitto.conf": "listener 1883\nplugin /usr/lib/mosquitto_dynamic_security.so\n"
            "plugin_opt_config_file dynamic.json\n",
            "dynamic.json": json.dumps(
                {"clients": [{"username": "off", "disabled": True}], "roles": []}
            ),
        },
        "off",
    ),
]


@pytest.mark.parametrize(("files", "user"), FOLDERS, ids=[user for _, user in FOLDERS])
def test_a_user_without_a_password_exists_and_needs_change_password(
    tmp_path: Path, files: dict[str, str], user: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = MosquittoImport(tmp_path / "mosquitto.conf")
    # The user exists after the import, so `trellis users add` would refuse the name.
    [defined] = result.definitions["users"]
    assert (defined["name"], defined["password_hash"]) == (user, "")
    [reason] = [note.reason for note in result.report.notes if f"'{user}'" in note.text]
    assert f"`trellis users change-password {user}`" in reason
