"""The test suite.

`make test` runs it on the source, `make test-compiled` runs its wire-level part on the compiled
wheel.
"""
