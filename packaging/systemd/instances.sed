# Makes the template unit trellis@.service, for several brokers on one machine, from trellis.service.
s,^# The settings are .*,# The settings of the broker NAME are /etc/trellis/NAME.toml; docs/several-brokers.md explains the unit.,
s,^\(# Runs the broker .*\) in /var/lib/trellis\.$,\1 in /var/lib/trellis-NAME.,
s,^Description=Trellis message broker,& %i,
s,/etc/trellis/broker.toml,/etc/trellis/%i.toml,
s,/etc/default/trellis$,&-%i,
s,^StateDirectory=trellis$,&-%i,
