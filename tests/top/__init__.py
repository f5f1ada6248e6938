"""The top floor: sockets, logins, HTTP, metrics, start and stop.

What is in-process runs on asyncio and on uvloop.
"""
