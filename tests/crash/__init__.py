"""Tests that kill a real broker under load, again and again.

After each start, all confirmed messages and definitions must exist.

    wire        connections of the clients
    ledger      the messages that were sent, confirmed and received; the checks
    publishers, workers, sessions, streams, changes    the clients, each with a ledger
    storm       a broker that is started and killed again and again on one data directory
    relay, exchanges, paho_kills    QoS 2 of paho-mqtt with all packets recorded; the checks
    damage      a directory for the tests of damaged and missing files
"""
