// The version of KEDA whose scaler the test builds, with its checksum in go.sum. The program is
// built within a copy of KEDA's module, with the versions of packages that KEDA names.
module trellis.test/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0
