"""Import of a Mosquitto configuration: `trellis import mosquitto PATH`.

report.py             the lines of Mosquitto's files that were not taken, or that differ
options.py            table of all options of mosquitto.conf: equal, different or missing
option_rows.py        the rows of that table
conf.py               reads mosquitto.conf: general options, listeners, plugins
access.py             access entries of Mosquitto as topic rules of Trellis
acl_file.py           acl_file
password_file.py      password_file
dynamic_security.py   dynamic-security.json
settings.py           general options and listeners as settings
importing.py          all files together: broker.toml and definitions
"""
