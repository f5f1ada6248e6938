"""A real broker under load is killed again and again; what it promised must hold each time it is
back.

wire         connections: octets out, events in
ledger       what was said, what was promised, what came; the verdict
publishers, workers, sessions, changes      the clients, each with a ledger
storm        lives of a broker on one data directory, and how they end
"""
