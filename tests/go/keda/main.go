// Asks Trellis for the load of queues as KEDA does in Kubernetes: with KEDA's own RabbitMQ scaler.
// Prints "ok" if every metric and every decision is the expected one.
//
//	keda API-ADDRESS AMQP-ADDRESS EXAMPLE
//
// The addresses are HOST:PORT. EXAMPLE is the file examples/keda/orders.yaml.
package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	v2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

const (
	// vhost has a name that must be escaped in a path.
	vhost = "keda/test"
	// sampling is the time in seconds between two samples from which Trellis computes a rate.
	sampling = 5
	// polling is the time between two questions for a rate, and patience the time for all of them.
	polling, patience = 200 * time.Millisecond, time.Minute
)

var (
	api, broker string
	channel     *amqp.Channel
	background  = context.Background()
)

type metadata map[string]string

// check ends the program if a condition does not hold.
func check(holds bool, what string, values ...any) {
	if !holds {
		fmt.Printf("failed: %s: %v\n", what, values)
		os.Exit(1)
	}
}

// must returns the value of a call, and ends the program if the call had an error.
func must[T any](value T, err error) T {
	check(err == nil, "unexpected error", err)
	return value
}

// put sends a PUT request to the HTTP API.
func put(path, body string) {
	request := must(http.NewRequest(http.MethodPut, "http://"+api+path, strings.NewReader(body)))
	request.SetBasicAuth("guest", "guest")
	response := must(http.DefaultClient.Do(request))
	_ = response.Body.Close()
	check(response.StatusCode < 300, "PUT "+path, response.Status)
}

// newScaler makes a scaler for a trigger. It ends the program if KEDA refuses the trigger.
func newScaler(trigger, auth metadata) scalers.Scaler {
	return must(scalers.NewRabbitMQScaler(&scalersconfig.ScalerConfig{
		ScalableObjectName: "worker", ScalableObjectNamespace: "test", TriggerMetadata: trigger,
		AuthParams: auth, GlobalHTTPTimeout: 10 * time.Second, MetricType: v2.AverageValueMetricType,
	}))
}

// ask returns the metric of a trigger, and true if KEDA scales its target from 0 to 1.
func ask(trigger, auth metadata) (float64, bool, error) {
	scaler := newScaler(trigger, auth)
	metrics, active, err := scaler.GetMetricsAndActivity(background, "metric")
	check(scaler.Close(background) == nil, "close a scaler", trigger)
	if err != nil {
		return 0, false, err
	}
	check(len(metrics) == 1, "one metric", metrics)
	return metrics[0].Value.AsApproximateFloat64(), active, nil
}

// expect checks the metric and the decision for a trigger.
func expect(value float64, active bool, trigger, auth metadata) {
	measured, decision, err := ask(trigger, auth)
	check(err == nil && measured == value && decision == active, "the metric", trigger, auth, measured,
		decision, err)
}

// overHTTP returns a trigger that uses the HTTP API of the virtual host, and has these options.
func overHTTP(options ...string) metadata {
	return trigger("http://guest:guest@"+api+"/keda%2Ftest", append(options, "protocol", "http"))
}

// overAMQP returns a trigger that uses AMQP and the virtual host, and has these options.
func overAMQP(options ...string) metadata {
	return trigger("amqp://guest:guest@"+broker+"/keda%2Ftest", append(options, "protocol", "amqp"))
}

func trigger(host string, options []string) metadata {
	fields := metadata{"host": host, "mode": "QueueLength", "value": "20"}
	for at := 0; at < len(options); at += 2 {
		fields[options[at]] = options[at+1]
	}
	return fields
}

func fill(name string, count int) {
	_, err := channel.QueueDeclare(name, true, false, false, false, nil)
	check(err == nil, "declare a queue", err)
	publish(name, count)
}

// publish publishes messages to a queue, and waits until the broker confirms them.
func publish(name string, count int) {
	for range count {
		confirmed, err := channel.PublishWithDeferredConfirm("", name, false, false, amqp.Publishing{})
		check(err == nil && confirmed.Wait(), "publish", err)
	}
}

// fetch gets messages of a queue.
func fetch(name string, count int, autoAck bool) {
	for range count {
		_, known, err := channel.Get(name, autoAck)
		check(err == nil && known, "get a message", err)
	}
}

// lengths asks for queue lengths: 5 messages of which 3 are unacknowledged, 2 messages, and none.
func lengths() {
	fill("jobs-a", 5)
	fill("jobs-b", 2)
	fill("jobs-c", 0)
	fill("others", 50)
	fetch("jobs-a", 3, false)

	expect(5, true, overHTTP("queueName", "jobs-a"), nil)
	expect(0, false, overHTTP("queueName", "jobs-c"), nil)
	expect(5, true, overHTTP("queueName", "jobs-a", "activationValue", "4"), nil)
	expect(5, false, overHTTP("queueName", "jobs-a", "activationValue", "5"), nil)
	expect(2, true, overHTTP("queueName", "jobs-a", "excludeUnacknowledged", "true"), nil)
	expect(2, true, overAMQP("queueName", "jobs-a"), nil)
	expect(2, false, overAMQP("queueName", "jobs-a", "activationValue", "2"), nil)
	expect(0, false, overAMQP("queueName", "jobs-c"), nil)

	// The virtual host and the password of the trigger take precedence over those of the URL.
	for _, host := range []string{"http://guest:wrong@" + api, "amqp://guest:wrong@" + broker} {
		for _, path := range []string{"", "/", "/elsewhere"} {
			expect(2, true, metadata{"host": host + path, "queueName": "jobs-b", "tls": "disable"},
				metadata{"username": "guest", "password": "guest", "vhostName": vhost})
		}
	}
	// A URL without a virtual host means the virtual host "/".
	_, _, err := ask(metadata{"host": "http://guest:guest@" + api, "queueName": "jobs-a"}, nil)
	check(err != nil && strings.Contains(err.Error(), "404"), "a queue of another vhost", err)
}

// selections asks for queues whose name matches a regular expression.
func selections() {
	selection := []string{"queueName", "^jobs-", "useRegex", "true"}
	for operation, value := range map[string]float64{"sum": 7, "max": 5, "avg": 2} {
		expect(value, true, overHTTP(append(selection, "operation", operation)...), nil)
	}
	ready := append(selection, "excludeUnacknowledged", "true", "activationValue", "4")
	expect(4, false, overHTTP(ready...), nil)
	// The expression matches anywhere in the name, unless it is anchored.
	expect(57, true, overHTTP("queueName", "o[bt]", "useRegex", "true"), nil)
	expect(2, true, overHTTP("queueName", "(a|b)$", "useRegex", "true", "operation", "avg",
		"excludeUnacknowledged", "true"), nil)
	expect(0, false, overHTTP("queueName", "^missing", "useRegex", "true"), nil)

	expect(7, true, overHTTP(append(selection, "pageSize", "3")...), nil)
	_, _, err := ask(overHTTP(append(selection, "pageSize", "2")...), nil)
	check(err != nil && strings.Contains(err.Error(), "more queues"), "a page too small", err)
	for _, wrong := range [][]string{{"queueName", "(", "useRegex", "true"},
		append(selection, "pageSize", "501")} {
		_, _, err = ask(overHTTP(wrong...), nil)
		check(err != nil && strings.Contains(err.Error(), "400 Bad Request"), "refused", wrong, err)
	}
}

// failures checks that the reason of a refusal is in the error, which KEDA writes to its log.
func failures() {
	_, _, err := ask(overHTTP("queueName", "missing"), nil)
	check(err != nil && strings.Contains(err.Error(), "404 Not Found"), "a missing queue", err)
	_, _, err = ask(overAMQP("queueName", "missing"), nil)
	check(err != nil && strings.Contains(err.Error(), "no queue 'missing'"), "a missing queue", err)
	wrong := metadata{"username": "guest", "password": "wrong"}
	_, _, err = ask(overHTTP("queueName", "jobs-a"), wrong)
	check(err != nil && strings.Contains(err.Error(), "401 Unauthorized"), "a wrong password", err)
	_, err = scalers.NewRabbitMQScaler(&scalersconfig.ScalerConfig{
		TriggerMetadata: overAMQP("queueName", "jobs-a"), AuthParams: wrong,
	})
	check(err != nil && strings.Contains(err.Error(), "username or password"), "over AMQP", err)
}

// traffic makes rates: a queue gets two messages for each message that is fetched. It asks for the
// metric of a trigger until the metric is not 0, and returns the metric and the decision.
func traffic(trigger metadata) (float64, bool) {
	end := time.After(patience)
	poll := time.NewTicker(polling)
	defer poll.Stop()
	for {
		select {
		case <-end:
			check(false, "a rate that rises", trigger)
		case <-poll.C:
			publish("rated", 20)
			fetch("rated", 10, true)
			value, active, err := ask(trigger, nil)
			check(err == nil, "a rate", err)
			if value != 0 {
				return value, active
			}
		}
	}
}

// rates asks for rates of messages, which Trellis computes from two answers.
func rates() {
	fill("rated", 0)
	expect(0, false, overHTTP("queueName", "rated", "mode", "MessageRate"), nil)
	rate := func(mode string, options ...string) (float64, bool) {
		return traffic(overHTTP(append(options, "queueName", "rated", "mode", mode)...))
	}
	for _, options := range [][]string{nil, {"useRegex", "true", "operation", "max"}} {
		published, active := rate("MessageRate", options...)
		check(active, "the publishing rate makes active", published)
		delivered, active := rate("DeliverGetRate", options...)
		check(active, "the delivery rate makes active", delivered)
		queue := must(channel.QueueDeclarePassive("rated", true, false, false, false, nil))
		// 10 of 20 messages remain, so the queue has as many messages as were delivered.
		total := float64(queue.Messages)
		check(0 < published && published <= 2*total/sampling, "the publishing rate", published, total)
		check(0 < delivered && delivered <= total/sampling, "the delivery rate", delivered, total)
		ratio, active := rate("PublishedToDeliveredRatio", options...)
		check(active && math.Abs(ratio-2) < 0.05, "twice as many published", ratio)
		seconds, active := rate("ExpectedQueueConsumptionTime", options...)
		check(active && seconds > sampling, "the time to empty the queue", seconds)
	}
	value, active := rate("DeliverGetRate", "activationValue", "1000000")
	check(value > 0 && !active, "a rate below the activation value", value)
}

// example uses the trigger of the example as KEDA does, for a user without rights to configure.
func example(path string) {
	var secret corev1.Secret
	var authentication v1alpha1.TriggerAuthentication
	var object v1alpha1.ScaledObject
	documents := bytes.Split(must(os.ReadFile(path)), []byte("\n---\n"))
	for at, into := range []any{&secret, &authentication, &object} {
		check(yaml.UnmarshalStrict(documents[at], into) == nil, "the example", string(documents[at]))
	}
	put("/api/vhosts/shop", "{}")
	put("/api/users/worker", `{"password": "secret", "tags": "management"}`)
	put("/api/permissions/shop/worker", `{"configure": "", "write": "", "read": ".*"}`)
	put("/api/permissions/shop/guest", `{"configure": ".*", "write": ".*", "read": ".*"}`)
	open("shop")
	fill("orders", 30)

	reference := authentication.Spec.SecretTargetRef[0]
	auth := metadata{
		reference.Parameter: strings.Replace(secret.StringData[reference.Key], "trellis:15672", api, 1),
	}
	check(strings.Contains(auth["host"], api), "the address in the example", auth)
	used := object.Spec.Triggers[0]
	check(used.Type == "rabbitmq" && used.AuthenticationRef.Name == authentication.Name, "refers", used)
	check(reference.Name == secret.Name, "the name of the secret", reference)
	expect(30, true, metadata(used.Metadata), auth)
	specs := newScaler(used.Metadata, auth).GetMetricSpecForScaling(background)
	check(len(specs) == 1 && specs[0].External.Target.AverageValue.Value() == 20, "target", specs)
	check(specs[0].External.Metric.Name == "s0-rabbitmq-orders", "the name of the metric", specs)
}

// open opens the channel of the program in a virtual host.
func open(name string) {
	connection := must(amqp.DialConfig("amqp://guest:guest@"+broker, amqp.Config{Vhost: name}))
	channel = must(connection.Channel())
	check(channel.Confirm(false) == nil, "confirms")
}

func main() {
	api, broker = os.Args[1], os.Args[2]
	put("/api/vhosts/keda%2Ftest", "{}")
	put("/api/permissions/keda%2Ftest/guest", `{"configure": ".*", "write": ".*", "read": ".*"}`)
	open(vhost)
	lengths()
	selections()
	failures()
	rates()
	example(os.Args[3])
	fmt.Println("ok")
}
