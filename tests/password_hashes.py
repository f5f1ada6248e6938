"""Password hashes of the smallest cost, for the processes of tests that start many brokers.

A broker makes a hash at its start, and checks a hash at a login. At the normal cost, which
tests/cli/test_config.py asserts, making or checking one hash takes 24 ms and 19 MiB.
"""

from __future__ import annotations

from typing import Final

import argon2

#: Makes hashes that take less than 0.1 ms. Any hasher can check them: each hash names its cost.
CHEAP: Final = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
#: The attribute with the cost of a hasher of argon2-cffi, which has no public way to change it.
COST: Final = "_parameters"
