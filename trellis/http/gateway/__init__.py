"""The gateway: the process that serves the HTTP API, beside the broker.

    client -- HTTP --> connections -> app -> link -- contract --> broker

The gateway does all work that clients can make large or slow: connections, TLS, bodies, sorting,
regular expressions, JSON and compression. The gateway stores no passwords and checks no
permissions: the broker does both, and sends rows. The broker starts the gateway at the first
request; an idle gateway ends after a while.

Reading order:

    app           answers a request: asks the broker, and builds a response from the rows
    incoming      a request: its head, its body, and the rules for every request
    web_page      the page at `/`: files, login (web_page_login), events (event_feed)
    link          the gateway's end of the contract (trellis/http/contract.py)
    connections   limits on connections, the HTTP protocol and the server, on uvicorn
    bodies        reads bodies within limits, and cuts definitions documents into rows
    paging        filters, sorts and pages the rows of long lists
    openapi       the description of the API
    __main__      the process
"""
