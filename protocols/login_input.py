"""The limit of the input that is stored for a client before its login."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

#: Largest size of the input that is stored for a client while its credentials are checked, in
#: bytes.
LOGIN_INPUT_MAX: Final[i64] = 64 << 10
