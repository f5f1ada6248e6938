"""Tests of the server: sockets, logins, HTTP, metrics, start and stop.

Tests with a broker in the same process run on uvloop, and in `make test-long` again on asyncio.
"""
