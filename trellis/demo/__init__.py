"""`trellis cluster demo`: a failover on one machine, with its figures.

failover     the demonstration: starts all programs, kills the active node, counts
traffic      a publisher and a consumer, which connect again after a failover
broker_node  one node of the broker, a child process
kafka_node   one Kafka node, a child process; its settings
java         finds Java
download     fetches Kafka's files
kafka_jars   the list of these files, which tools/kafka_jars.py writes
errors       DemoError
logs         the last line of a log file, for errors
"""
