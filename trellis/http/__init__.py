"""HTTP: the server, the management API, stream files and the metrics endpoint."""
