"""HTTP: the management API, the process that serves it, stream files and the metrics port.

Reading order:

    contract          the messages between the broker and the gateway
    answering         the broker's end: checks users, runs handlers, sends rows in slices
    management/       the routes and handlers of the management API
    gateway/          the process of the http port: connections, bodies, JSON
    gateway_process   starts the gateway at the first request, and again after it has ended
    slices            the time that all calls may use in one turn of the event loop
    logins            checks the credentials of a request
    refusals          logs a refused request
    origins           rules for requests of browsers and proxies
    credentials       the Authorization header
    request_head      reads the request line and headers, and refuses ambiguous ones
    stream_files      lists the segments of streams, and opens ranges of them
    routes            finds the handler of a method and a path
    server            the HTTP server of the metrics port
    metrics_endpoint  the routes of the metrics port: metrics and health
    page_sessions     the sessions of the web page
    service           all HTTP of a broker
"""
