"""Brokers for the tests of programs that use Trellis: fixtures of pytest.

    plugin.py    the fixtures `trellis` and `trellis_factory`, and the log of a broker at a failure
    running.py   RunningBroker: addresses, helpers, stop and restart
    spawner.py   a process that has loaded the broker, and forks for each broker

The plugin is loaded by every run of pytest where Trellis is installed. So it imports almost nothing
before a test asks for a broker.
"""
