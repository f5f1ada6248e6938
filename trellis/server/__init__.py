"""The running broker: sockets, links, listeners, TLS, the loop turn and the store writer.

Reading order, by subject:

    one turn of the event loop   turn, clock_floor
    one client                   link, layered_link, tls, rate_limited_link
    ports                        listener, acceptor, listener_context, admission, certificates,
                                 descriptors
    the store                    store_writer, durable_store_writer, recovery, disk_reserve
    the data directory           data_directory, file_modes
    the whole broker             node, fence
    a start or a reload          reload, definitions_files, matching_profile
    running in the background    alarms, memory, heap, gc_policy
    log lines                    refusals, reachability
    the audit log                audit_log, offline_audit

A LoopTurn does the work of all links once per turn of the event loop. BrokerNode builds the broker
and these parts; trellis/app.py opens the listeners and runs them.
"""
