module trellis.test/rabbithole

go 1.23.0

require github.com/michaelklishin/rabbit-hole/v3 v3.2.0
