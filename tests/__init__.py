"""The test suite.

`make test` runs it on the source, `make test-compiled` its wire-level part on the compiled wheel.
"""
