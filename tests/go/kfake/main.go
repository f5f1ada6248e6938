// An in-memory Kafka of three nodes on free ports of one address, and its faults.
//
// The first line of output lists the addresses. Each line of input is a command, answered with "ok":
//
//	fault KEY ERROR N    answer the next N requests with an error (-1: until `clear`); 0 is Produce
//	clear                remove all faults
//	move TOPIC           move the partition of a topic to another node
//
// The end of the input ends the program.
package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const nodes = 3

var errors = map[string]*kerr.Error{
	"COORDINATOR_LOAD_IN_PROGRESS":     kerr.CoordinatorLoadInProgress,
	"NOT_COORDINATOR":                  kerr.NotCoordinator,
	"OFFSET_OUT_OF_RANGE":              kerr.OffsetOutOfRange,
	"NOT_ENOUGH_REPLICAS":              kerr.NotEnoughReplicas,
	"REQUEST_TIMED_OUT":                kerr.RequestTimedOut,
	"TOPIC_AUTHORIZATION_FAILED":       kerr.TopicAuthorizationFailed,
	"NOT_ENOUGH_REPLICAS_AFTER_APPEND": kerr.NotEnoughReplicasAfterAppend,
}

func main() {
	cluster, err := kfake.NewCluster(options()...)
	check(err)
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))
	var handles []*kfake.FaultHandle
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Fields(input.Text())
		switch words[0] {
		case "fault":
			handles = append(handles, cluster.Fault(fault(words[1:])))
		case "clear":
			for _, handle := range handles {
				handle.Remove()
			}
			handles = nil
		case "move":
			check(cluster.MoveTopicPartition(words[1], 0, (cluster.LeaderFor(words[1], 0)+1)%nodes))
		default:
			panic("unknown command " + words[0])
		}
		fmt.Println("ok")
	}
}

func fault(words []string) kfake.Fault {
	key, err := strconv.Atoi(words[0])
	check(err)
	answer, known := errors[words[1]]
	if !known {
		panic("unknown error " + words[1])
	}
	count, err := strconv.Atoi(words[2])
	check(err)
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Key(key)}, Err: answer, Count: count}
}

// options returns the options of the cluster from the arguments NAME=VALUE. `host` is the address on which
// the nodes listen (127.0.0.1 by default), `login` is USER:PASSWORD, and `certificate` is a PEM file with a key and
// its certificate. All others are settings of the nodes.
func options() []kfake.Opt {
	settings := map[string]string{}
	chosen := []kfake.Opt{kfake.NumBrokers(nodes), kfake.BrokerConfigs(settings)}
	for _, argument := range os.Args[1:] {
		name, value, _ := strings.Cut(argument, "=")
		switch name {
		case "host":
			chosen = append(chosen, kfake.ListenFn(func(network, address string) (net.Listener, error) {
				_, port, err := net.SplitHostPort(address)
				check(err)
				return net.Listen(network, net.JoinHostPort(value, port))
			}))
		case "login":
			user, password, _ := strings.Cut(value, ":")
			chosen = append(chosen, kfake.EnableSASL(), kfake.Superuser("PLAIN", user, password))
		case "certificate":
			certificate, err := tls.LoadX509KeyPair(value, value)
			check(err)
			chosen = append(chosen, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}))
		default:
			settings[name] = value
		}
	}
	return chosen
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
