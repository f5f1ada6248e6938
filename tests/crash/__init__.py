"""Tests that kill a real broker under load, again and again.

After each start, all confirmed messages and definitions must exist.

    wire        connections of the clients
    ledger      what was sent, confirmed and received; the checks
    publishers, workers, sessions, streams, changes    the clients, each with a ledger
    storm       lives of a broker on one data directory
    relay, exchanges, paho_lives    QoS 2 of paho-mqtt with all packets recorded; the checks
    damage      a directory for the tests of damaged and missing files
"""
