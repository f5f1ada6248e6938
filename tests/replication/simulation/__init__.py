"""A simulated cluster: nodes with data directories, a replicated log, and clients.

world        the clock, the network, the log with its faults, and the engine of steps
directory    a data directory, which keeps after a crash what was synced
real         a node with the real directory: segment log and catalog
node         a broker: a standby, or the owner (active node) with its queues
cluster      nodes, faults and clients of one seed, and the checks
wrong        wrong designs, each of which the checks must catch
wrong_directory  wrong designs of the real directory
"""
