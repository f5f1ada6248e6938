"""Brokers for the tests of programs that use Trellis: fixtures of pytest.

    plugin.py    the fixtures `trellis` and `trellis_factory`, and the log of a broker at a failure
    running.py   RunningBroker: addresses, helpers, stop and restart
    starting.py  Spawner: starts the process of spawner.py, and sends requests to it
    spawner.py   a process that has loaded the broker, and forks for each broker (fork_server.py)
    programs.py  the gateway of a broker, which is forked, too

The plugin is loaded by every run of pytest where Trellis is installed. So it imports almost nothing
before a test asks for a broker.
"""
