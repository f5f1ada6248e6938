module trellis.test/telegraf

go 1.26.0

require github.com/influxdata/telegraf v1.37.2
