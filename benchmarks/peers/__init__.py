"""Compares Trellis with other brokers: the same workloads, load tool and machine, in turn.

A *peer* is a broker that this package can start. The peer's class defines what must be installed,
how to start the broker with its best settings, and why a workload is not supported. A *run*
consists of rounds. In each round every peer in turn is started on loopback, runs every workload
that it supports, and is stopped. So a disturbance of the machine affects all peers, and medians
over rounds are compared. The load comes from `trellis bench load`, one process per workload, which
checks every message; a broker with a wrong answer is reported as wrong, without a figure.

              command.py
              /        `-----.
        rounds.py          report.py       `run` writes results, `report` reads them
        /   |   `-----.     /   `----.
    load.py |    results.py  table.py, chart.py
            |
       brokers/*.py          one peer per file, each a subclass of PeerBroker in peer.py

Reading order: workloads, process, peer, brokers, results, rounds, load, machine, table, chart,
report, command. The package needs only the standard library and Linux (/proc).
"""
