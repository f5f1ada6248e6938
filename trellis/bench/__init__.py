"""`trellis bench load`: measures an AMQP 0-9-1 or MQTT 3.1.1 broker and checks every delivery.

A workload is an entry in a table. For each workload the tool builds a scene at the broker:
connections, subscriptions and queues. One thread then sends messages that were encoded before, as
many as the window allows, and compares every received message with the published one. CPU time and
memory of the broker's processes are read from /proc.

    workloads --> scene --> generator --> lines ----> readers --> checkers
                            (epoll)       (sockets)   (bytes)     (comparisons)

Read in this order:

    workloads.py      the table
    run.py            warm-up and rounds of one workload
    scene.py          connections, queues and bindings of a workload, and their removal
    encoding.py       names and encoded messages
    target.py         client.py  mqtt.py  amqp.py        logins, subscriptions, declarations
    check.py          the messages that must arrive (compiled, like the next five)
    reader.py         mqtt_readers.py  amqp_readers.py   bytes -> checks and acknowledgements
    line.py           one socket
    generator.py      the loop
    latency.py        a histogram
    processes.py      CPU and memory                   report.py  errors.py
"""
