"""The rows of the table in options.py: name | verdict | defaults | Trellis | note.

`defaults` are values of the option, separated by spaces, with which Trellis behaves like Mosquitto.
An indented line continues the row above it.
"""

from typing import Final

ROWS: Final = """
[general]
allow_duplicate_messages | different | false | - | a client with overlapping subscriptions gets a
    message once
autosave_interval | not needed | | `store` | a message is on disk before it is acknowledged
autosave_on_changes | not needed | | `store` | a message is on disk before it is acknowledged
check_retain_source | different | true | - | the right of the publisher is checked when it
    publishes; delete retained messages of a removed user
enable_control_api | missing | false | HTTP API | `$CONTROL` has no function; use the HTTP API
global_max_clients | equal | -1 | `mqtt.sessions` |
global_max_connections | different | -1 | `limits.connections` | the limit counts AMQP connections
    too
include_dir | equal | | - | the files are read in the same order
max_inflight_bytes | missing | 0 | - | limit the messages in flight with `mqtt.receive_maximum`
max_inflight_messages | different | | `mqtt.receive_maximum` | also limits what an MQTT 5 client
    may send at once; the default is 1,024 instead of 20
max_keepalive | different | 0 | `mqtt.keep_alive_max` | a client of MQTT 3 with a longer keep-alive
    is accepted; Mosquitto refuses this client
max_packet_size | equal | 0 | `mqtt.max_packet` |
max_queued_bytes | missing | 0 | `mqtt.session_backlog` | limit the number of messages of a session
    with `mqtt.session_backlog`
max_queued_messages | different | | `mqtt.session_backlog` | at the limit, Trellis drops the oldest
    message, and Mosquitto the newest; the default is 100,000 instead of 1,000
memory_limit | different | 0 | `limits.memory` | set the share of the machine's memory above which
    publishers wait
message_size_limit | different | 0 | `limits.message`, `mqtt.max_packet` | Trellis disconnects a
    client that sends a larger packet; Mosquitto drops the message
per_listener_settings | different | false | - | all listeners share one set of users; see
    [Listeners](#listeners-with-different-users)
persistence | different | true | `data.dir` | durable data is on disk before it is acknowledged;
    messages in mosquitto.db are not imported
persistence_file | not needed | | `data.dir` | the data directory has its own files
persistence_location | different | | `data.dir` | choose a new directory; Trellis cannot read
    mosquitto.db
persistent_client_expiration | equal | | `mqtt.session_expiry` |
pid_file | missing | | - | a service manager such as systemd knows the process
queue_qos0_messages | missing | false | - | messages of QoS 0 are not kept for disconnected
    clients; publish with QoS 1
retain_available | different | true | `mqtt.retained` | with `mqtt.retained = 0`, a message with
    RETAIN is delivered and not retained; the client is not disconnected
retain_expiry_interval | not needed | | - | Trellis removes expired retained messages without this
    option
retry_interval | not needed | | - | messages are sent again when a client connects again, as MQTT
    requires
set_tcp_nodelay | not needed | | - | Trellis always sets TCP_NODELAY
store_clean_interval | not needed | | - | messages are removed when nothing refers to them
sys_interval | equal | | `mqtt.sys_interval` |
upgrade_outgoing_qos | missing | false | - | subscribe with the QoS of the publication, as MQTT
    requires
user | missing | | - | start Trellis as this user, for example with `User=` of systemd
[security]
acl_file | different | | topic rules | the entries become topic rules of each user
allow_anonymous | different | | `mqtt.anonymous`, `mqtt.anonymous_rules` | if `allow_anonymous` is
    true and there is no password_file, Mosquitto accepts every user name; Trellis accepts only
    known user names
allow_zero_length_clientid | missing | true | - | clients without an identifier get one; a rule
    `reserve client` protects identifiers
auth_plugin_deny_special_chars | equal | true | topic rules | a client identifier with + or #
    matches no rule that names it
auto_id_prefix | missing | auto- | - | the identifiers begin with `auto-`
clientid_prefixes | missing | | rule `reserve client` | every identifier may connect; reserve
    identifiers for users
password_file | equal | | users | the hashes are imported and keep working; a password without a
    hash is not taken
psk_file | missing | | TLS with certificates | Trellis has no pre-shared keys; give the clients
    certificates
[log]
connection_messages | not needed | | `log.level` | refused logins are logged as `login_refused`;
    `trellis list connections` shows clients
log_dest | missing | stderr stdout | - | the log goes to standard error; redirect it, or use the
    journal of systemd
log_facility | missing | | - | the log goes to standard error
log_timestamp | not needed | | - | each line has its time
log_timestamp_format | not needed | | - | each line has its time in ISO 8601
log_type | different | | `log.level` | `log.level` sets the lowest level that is logged, instead of
    a set of types
websockets_log_level | not needed | | `log.level` | one level for the whole log
[listener]
accept_protocol_versions | missing | | - | versions 3.1, 3.1.1 and 5 are accepted
bind_address | equal | | `mqtt.host` |
bind_interface | missing | | `mqtt.host` | set `mqtt.host` to the addresses of the interface
enable_proxy_protocol | different | | `proxies` | list the addresses of the proxies in `proxies`;
    connections from other addresses need no header
http_dir | missing | | - | serve files with a web server
listener | different | | `mqtt`, `mqtts`, `ws`, `wss` | one port of each kind; a listener may have
    several addresses
listener_allow_anonymous | different | | `mqtt.anonymous` | one setting for all listeners: anonymous
    clients from any address, or from loopback only
listener_auto_id_prefix | missing | auto- | - | the identifiers begin with `auto-`
max_connections | different | -1 | `limits.connections` | one limit for all listeners, AMQP
    connections included
max_qos | missing | 2 | - | every QoS is accepted
max_topic_alias | equal | | `mqtt.topic_alias_maximum` | one value for all listeners
max_topic_alias_broker | different | | - | Trellis uses the aliases that the client offers
mount_point | missing | | virtual hosts | the topics have no prefix; give the clients a virtual
    host, or the prefix in their topics
mptcp | missing | false | - | listeners use plain TCP
packet_buffer_size | not needed | | - | buffers grow with their packets
port | equal | | `mqtt.port` |
protocol | different | mqtt | `ws.path` | a WebSocket has one path, /mqtt after the import;
    `http_api` is missing
proxy_protocol_v2_require_tls | missing | false | `proxies` | the proxy must refuse clients
    without TLS
socket_domain | equal | | `host` | the import writes only addresses of this IP version
use_username_as_clientid | missing | false | rule `reserve client` | give each user the rule
    `reserve client {username}`, and let each client use its user name as its client identifier
websockets_headers_size | not needed | | - | the head of a WebSocket request has 16 KiB at most
websockets_origin | different | | `ws.origins` | without this option, Mosquitto accepts web pages of
    all origins, and Trellis only pages of its own host
[tls]
cafile | equal | | `tls.ca` | one file for all listeners
capath | missing | | `tls.ca` | write all certificates into one file
certfile | different | | `tls.certificate` | one certificate for all listeners; `tls.names` has the
    certificates of further host names
ciphers | missing | | - | Trellis uses the cipher suites of OpenSSL's default for TLS 1.2
ciphers_tls1.3 | missing | | - | Trellis uses all cipher suites of TLS 1.3
crlfile | equal | | `tls.crl` | one file for all listeners
dhparamfile | not needed | | - | key exchange uses elliptic curves
disable_client_cert_date_checks | missing | false | - | expired certificates are refused; issue
    new ones
keyfile | equal | | `tls.key` |
psk_hint | missing | | TLS with certificates | Trellis has no pre-shared keys; give the clients
    certificates
require_certificate | equal | | `client_certificate = "required"` |
tls_engine | missing | | - | Trellis reads keys from PEM files only
tls_engine_kpass_sha1 | missing | | - | Trellis reads keys from PEM files only
tls_keyform | missing | pem | - | Trellis reads keys from PEM files only
tls_version | equal | | `tls.minimum` | one value for all listeners
use_identity_as_username | different | false | `certificate_user` | applies to clients without a
    user name; the user must exist
use_subject_as_username | missing | false | `tls.user_from` | a user is named by the common name,
    the DNS name, the email address or the URI
[plugin]
auth_opt_* | different | | - | see `plugin_opt_*`
auth_plugin | different | | - | see `plugin`
global_plugin | different | | - | see `plugin`
plugin | different | | users, topic rules | dynamic security, password file and ACL file are
    imported; other plugins are not
plugin_load | different | | users, topic rules | see `plugin`; applies to the listeners that name it
    with `plugin_use`
plugin_opt_* | different | | - | the import reads the files that the options of imported plugins
    name
plugin_use | different | | - | see `plugin`; applies to one listener
[bridge]
address | different | | `bridge.remote` | a bridge has one address; Mosquitto tries several
    addresses in turn
addresses | different | | `bridge.remote` | see `address`
bridge_alpn | missing | | - | the remote broker must accept a connection without ALPN
bridge_attempt_unsubscribe | missing | | - | the bridge does not unsubscribe from a topic that was
    removed from its settings; delete the sessions of the bridge
bridge_bind_address | missing | | - | the operating system chooses the address
bridge_cafile | equal | | `bridge.ca` |
bridge_capath | missing | | `bridge.ca` | write all certificates into one file
bridge_certfile | equal | | `bridge.certificate` |
bridge_ciphers | missing | | - | the bridge uses the cipher suites of OpenSSL's default for TLS 1.2
bridge_ciphers_tls1.3 | missing | | - | the bridge uses all cipher suites of TLS 1.3
bridge_identity | missing | | TLS with certificates | Trellis has no pre-shared keys; give the
    bridge a certificate
bridge_insecure | missing | false | - | the host name of the certificate is always verified
bridge_keyfile | equal | | `bridge.key` |
bridge_max_packet_size | equal | 0 | `bridge.remote_packet_max` |
bridge_max_topic_alias | not needed | | - | the bridge uses no topic aliases
bridge_mptcp | missing | false | - | the bridge uses plain TCP
bridge_outgoing_retain | missing | true | - | retained messages stay retained
bridge_protocol_version | different | mqttv50 | `bridge.remote_protocol` | mqttv31 becomes 3.1.1
bridge_psk | missing | | TLS with certificates | see `bridge_identity`
bridge_receive_maximum | equal | | `bridge.window` |
bridge_reload_type | missing | lazy | - | a changed bridge needs a restart of the broker
bridge_require_ocsp | missing | false | - | the revocation of the certificate is not checked
bridge_session_expiry_interval | equal | | `bridge.session_expiry` |
bridge_tcp_keepalive | not needed | | `bridge.keep_alive` | MQTT's keep-alive finds a dead
    connection
bridge_tcp_user_timeout | not needed | | `bridge.keep_alive` | MQTT's keep-alive finds a dead
    connection
bridge_tls_use_os_certs | equal | | `bridge.ca` |
bridge_tls_version | missing | | - | the bridge uses TLS 1.2 or 1.3
cleansession | different | false | - | the remote session is always kept
clientid | equal | | `bridge.client_id` |
connection | different | | `[[bridge]]` | copies with QoS 1 at most, and marks the messages with a
    user property; see [bridges.md](bridges.md)
idle_timeout | missing | | - | the bridge is always connected
keepalive_interval | equal | | `bridge.keep_alive` |
local_cleansession | different | false | - | the local session is always kept
local_clientid | missing | | - | the identifier is `bridge.` and the name of the bridge
local_password | equal | | `bridge.local_password` |
local_username | equal | | `bridge.local_user` |
notification_topic | missing | | - | see `notifications`
notifications | missing | false | - | no topic has the state of the bridge; `trellis list bridges`
    and `trellis_bridge_up` show it
notifications_local_only | missing | false | - | see `notifications`
password | equal | | `bridge.remote_password` |
remote_clientid | equal | | `bridge.client_id` |
remote_password | equal | | `bridge.remote_password` |
remote_username | equal | | `bridge.remote_user` |
restart_timeout | different | | `bridge.reconnect_max` | the first wait is 1 s, and each wait is
    twice the one before, up to 30 s
round_robin | missing | false | - | see `address`
start_type | missing | automatic | - | the bridge is always connected
threshold | missing | | - | the bridge is always connected
topic | equal | | `bridge.topics` |
try_private | not needed | | - | No Local and a user property prevent loops
username | equal | | `bridge.remote_user` |
"""
