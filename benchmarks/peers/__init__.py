"""Trellis beside other brokers: the same workloads, the same load tool, one machine, in turn.

Theory of operation. A *peer* is a broker that we know how to start: what must be installed, which
settings suit it best, which workloads it can do, and why not the others. A *run* is rounds; in each
round every peer in turn is started afresh on loopback, does every workload that it can do, and
ends. So a mood of the machine meets all of them, and what is compared are medians over rounds. The
load itself is `trellis bench load`, one process per workload, which checks every answer; a broker
whose answer is wrong is reported as wrong, with no figure.

              command.py
              /        \\
        rounds.py     report.py          run: writes results     report: reads them
        /   |   \\       /   \\
   load.py  |  results.py   table.py, chart.py
            |
       brokers/*.py    one peer per file, all are a `Peer` of peer.py; they start processes of process.py

Reading order: workloads, process, peer, brokers, results, rounds, load, machine, table, chart,
report, command. Only the standard library is needed, and Linux (/proc).
"""
