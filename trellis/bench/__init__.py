"""`trellis bench load`: how fast is a broker, and are its answers right? For any AMQP 0-9-1 or MQTT
3.1.1 broker.

A workload is a line in a table. For each of them a scene is built (connections, subscriptions,
queues), one thread publishes what was encoded before, as much as a window allows, and hears what
comes back; every message that comes is checked. What the broker's processes use is read from /proc
beside it.

    workloads --> scene --> generator --> lines --> readers --> checkers
                              ^ epoll     sockets   octets      is it right?

Read in this order:

    workloads.py      the table
    run.py            warm-up and rounds of one workload
    scene.py          what a workload needs at the broker, and cleaning up
    encoding.py       names and encoded messages       target.py  client.py  mqtt.py  amqp.py   connections until they run
    check.py          what must arrive (compiled, as the next five)
    reader.py         mqtt_readers.py  amqp_readers.py   octets -> checks and acknowledgements
    line.py           one socket
    generator.py      the loop
    latency.py        a histogram
    processes.py      CPU and memory                   report.py  errors.py
"""
