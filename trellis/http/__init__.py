"""HTTP: the server, the management API, stream files and the metrics endpoint.

Reading order:

    server            the HTTP server: reads a request, calls its handler, sends the response
    routes            finds the handler of a method and a path
    metrics_endpoint  the routes of the metrics port: metrics and health
    stream_files      lists the segments of streams, and sends them to clients
    management/       the routes of the http port: the management API
    service           all HTTP servers of a broker, one for each listener
"""
