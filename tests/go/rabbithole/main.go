// Uses the HTTP API as Terraform's provider and the Kubernetes topology operator do: through their
// library rabbit-hole. Prints "ok" if every answer is the expected one.
//
//	rabbithole API-URL
package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

const vhost = "rabbit/hole"

var client *rabbithole.Client

// check ends the program if a condition does not hold.
func check(holds bool, what string, values ...any) {
	if !holds {
		fmt.Printf("failed: %s: %v\n", what, values)
		os.Exit(1)
	}
}

// done checks the response to a change.
func done(what string, response *http.Response, err error) *http.Response {
	check(err == nil, what, err)
	check(response.StatusCode < 300, what, response.Status)
	return response
}

// gone checks that an object is missing: the tools look at the status of the error.
func gone(what string, err error) {
	var answer rabbithole.ErrorResponse
	check(errors.As(err, &answer), what, err)
	check(answer.StatusCode == 404 && answer.Message == "Object Not Found", what, answer)
}

// must returns the value of a call, and ends the program if the call had an error.
func must[T any](value T, err error) T {
	check(err == nil, "reading", err)
	return value
}

func overview() {
	about := must(client.Overview())
	check(about.Node != "" && about.RabbitMQVersion != "", "overview", about)
	check(must(client.Whoami()).Name == "guest", "whoami")
	nodes := must(client.ListNodes())
	check(len(nodes) == 1 && nodes[0].IsRunning, "nodes", nodes)
	must(client.GetNode(nodes[0].Name))
	before := must(client.GetClusterName()).Name
	response, err := client.SetClusterName(rabbithole.ClusterName{Name: "fleet"})
	done("set the cluster name", response, err)
	check(must(client.GetClusterName()).Name == "fleet", "the cluster name")
	response, err = client.SetClusterName(rabbithole.ClusterName{Name: before})
	done("set the cluster name again", response, err)
	alarms := must(client.HealthCheckAlarms())
	check(alarms.Ok(), "health check of alarms", alarms)
	must(client.ListFeatureFlags())
	must(client.ListDeprecatedFeatures())
	check(len(must(client.EnabledProtocols())) > 0, "protocols")
}

func virtualHosts() {
	settings := rabbithole.VhostSettings{
		Description: "first", Tags: []string{"a", "b"}, DefaultQueueType: "quorum",
	}
	response, err := client.PutVhost(vhost, settings)
	done("create a virtual host", response, err)
	known := must(client.GetVhost(vhost))
	check(known.Description == "first" && len(known.Tags) == 2, "the virtual host", known)
	check(known.DefaultQueueType == "quorum", "its default queue type", known)
	response, err = client.PutVhost(vhost, rabbithole.VhostSettings{DefaultQueueType: "classic"})
	done("change a virtual host", response, err)
	response, err = client.PutVhostLimits(vhost, rabbithole.VhostLimitsValues{"max-queues": 9})
	done("limit a virtual host", response, err)
	limits := must(client.GetVhostLimits(vhost))
	check(len(limits) == 1 && limits[0].Value["max-queues"] == 9, "the limits", limits)
	response, err = client.DeleteVhostLimits(vhost, rabbithole.VhostLimits{"max-queues"})
	done("lift a limit", response, err)
	check(len(must(client.ListVhosts())) >= 2, "virtual hosts")
	_, err = client.GetVhost("missing")
	gone("a missing virtual host", err)
}

func users() {
	settings := rabbithole.UserSettings{
		Name: "worker", Password: "secret", Tags: rabbithole.UserTags{"monitoring", "policymaker"},
	}
	response, err := client.PutUser("worker", settings)
	done("create a user", response, err)
	check(len(must(client.GetUser("worker")).Tags) == 2, "the user's tags")
	hash := rabbithole.Base64EncodedSaltedPasswordHashSHA256("other")
	response, err = client.PutUser("hashed", rabbithole.UserSettings{
		PasswordHash: hash, HashingAlgorithm: rabbithole.HashingAlgorithmSHA256,
	})
	done("create a user with a hash", response, err)
	check(must(client.GetUser("hashed")).PasswordHash == hash, "the hash")
	rights := rabbithole.Permissions{Configure: "^a", Write: ".*", Read: ".*"}
	response, err = client.UpdatePermissionsIn(vhost, "worker", rights)
	done("permit a user", response, err)
	check(must(client.GetPermissionsIn(vhost, "worker")).Configure == "^a", "the permissions")
	topics := rabbithole.TopicPermissions{Exchange: "amq.topic", Write: "^w", Read: "^r"}
	response, err = client.UpdateTopicPermissionsIn(vhost, "worker", topics)
	done("permit topics", response, err)
	known := must(client.GetTopicPermissionsIn(vhost, "worker"))
	check(len(known) == 1 && known[0].Write == "^w", "the topic permissions", known)
	response, err = client.ClearTopicPermissionsIn(vhost, "worker")
	done("clear topic permissions", response, err)
	_, err = client.GetTopicPermissionsIn(vhost, "worker")
	gone("cleared topic permissions", err)
	response, err = client.PutUserLimits("worker", rabbithole.UserLimitsValues{"max-channels": 3})
	done("limit a user", response, err)
	limits := must(client.GetUserLimits("worker"))
	check(len(limits) == 1 && limits[0].Value["max-channels"] == 3, "the user's limits", limits)
	response, err = client.ClearPermissionsIn(vhost, "worker")
	done("clear permissions", response, err)
	_, err = client.GetPermissionsIn(vhost, "worker")
	gone("cleared permissions", err)
	for _, name := range []string{"worker", "hashed"} {
		response, err = client.DeleteUser(name)
		done("delete a user", response, err)
		_, err = client.GetUser(name)
		gone("a deleted user", err)
	}
}

// hardKey binds and unbinds with a routing key that must be escaped. Terraform's provider puts the
// properties key into a name whose parts are separated by slashes.
func hardKey(binding rabbithole.BindingInfo) {
	response, err := client.DeclareBinding(vhost, binding)
	done("bind", response, err)
	parts := strings.Split(response.Header.Get("Location"), "/")
	key := must(url.PathUnescape(parts[len(parts)-1]))
	check(!strings.Contains(key, "/"), "the properties key has no slash", key)
	between := must(client.ListQueueBindingsBetween(vhost, binding.Source, binding.Destination))
	check(len(between) == 1 && between[0].PropertiesKey == key, "the properties key", key, between)
	check(between[0].RoutingKey == binding.RoutingKey, "the routing key", between)
	response, err = client.DeleteBinding(vhost, between[0])
	done("unbind", response, err)
	between = must(client.ListQueueBindingsBetween(vhost, binding.Source, binding.Destination))
	check(len(between) == 0, "no binding is left", between)
}

func topology() {
	response, err := client.DeclareExchange(vhost, "x", rabbithole.ExchangeSettings{
		Type: "topic", Durable: true, Arguments: map[string]any{"alternate-exchange": "amq.fanout"},
	})
	done("declare an exchange", response, err)
	exchange := must(client.GetExchange(vhost, "x"))
	check(exchange.Type == "topic" && exchange.Durable, "the exchange", exchange)
	check(exchange.Arguments["alternate-exchange"] == "amq.fanout", "its arguments", exchange)
	for _, kind := range []string{"classic", "quorum", "stream"} {
		response, err = client.DeclareQueue(vhost, "q/"+kind, rabbithole.QueueSettings{
			Durable: true, Arguments: map[string]any{"x-queue-type": kind},
		})
		done("declare a queue", response, err)
		queue := must(client.GetQueue(vhost, "q/"+kind))
		check(queue.Type == kind && queue.Durable && queue.Status == "running", "the queue", queue)
		check(queue.MessagesDetails != nil && queue.MessagesReadyDetails != nil, "its rates", queue)
	}
	binding := rabbithole.BindingInfo{
		Source: "x", Destination: "q/classic", DestinationType: "queue", RoutingKey: "a.#",
		Arguments: map[string]any{"one": "two"},
	}
	response, err = client.DeclareBinding(vhost, binding)
	done("bind", response, err)
	parts := strings.Split(response.Header.Get("Location"), "/")
	check(len(parts) == 2, "the location of a binding", parts)
	key := must(url.PathUnescape(parts[1]))
	listed := false
	for _, one := range must(client.ListQueueBindings(vhost, "q/classic")) {
		if one.Source == "x" {
			check(one.PropertiesKey == key && one.RoutingKey == "a.#", "the binding", one, key)
			binding, listed = one, true
		}
	}
	check(listed, "the binding is listed")
	response, err = client.DeleteBinding(vhost, binding)
	done("unbind", response, err)
	between := must(client.ListQueueBindingsBetween(vhost, "x", "q/classic"))
	check(len(between) == 0, "no binding is left", between)
	for _, hard := range []string{"a/b", "~ of 100 % a+b", "#", "é"} {
		hardKey(rabbithole.BindingInfo{
			Source: "x", Destination: "q/classic", DestinationType: "queue", RoutingKey: hard,
			Arguments: map[string]any{},
		})
	}
	response, err = client.PurgeQueue(vhost, "q/classic")
	done("purge", response, err)
	paged := must(client.PagedListQueuesWithParameters(url.Values{"page": {"1"}, "page_size": {"2"}}))
	check(len(paged.Items) == 2 && paged.TotalCount >= 3, "a page of queues", paged)
	for _, kind := range []string{"classic", "quorum", "stream"} {
		response, err = client.DeleteQueue(vhost, "q/"+kind)
		done("delete a queue", response, err)
		_, err = client.GetQueue(vhost, "q/"+kind)
		gone("a deleted queue", err)
	}
	response, err = client.DeleteExchange(vhost, "x")
	done("delete an exchange", response, err)
	_, err = client.GetExchange(vhost, "x")
	gone("a deleted exchange", err)
}

func policies() {
	policy := rabbithole.Policy{
		Pattern: "^q", ApplyTo: "queues", Priority: 3,
		Definition: rabbithole.PolicyDefinition{"max-length": 10},
	}
	response, err := client.PutPolicy(vhost, "p", policy)
	done("set a policy", response, err)
	check(must(client.GetPolicy(vhost, "p")).Priority == 3, "the policy")
	response, err = client.DeletePolicy(vhost, "p")
	done("delete a policy", response, err)
	_, err = client.GetPolicy(vhost, "p")
	gone("a deleted policy", err)
	operator := rabbithole.OperatorPolicy{
		Pattern: ".*", ApplyTo: "all", Definition: rabbithole.PolicyDefinition{"max-length": 10},
	}
	response, err = client.PutOperatorPolicy(vhost, "o", operator)
	done("set an operator policy", response, err)
	check(must(client.GetOperatorPolicy(vhost, "o")).ApplyTo == "all", "the operator policy")
	response, err = client.DeleteOperatorPolicy(vhost, "o")
	done("delete an operator policy", response, err)
	_, err = client.GetOperatorPolicy(vhost, "o")
	gone("a deleted operator policy", err)
}

// refused checks that a request is refused, with a reason that the tools show to their users.
func refused(err error, reason string) {
	var answer rabbithole.ErrorResponse
	check(errors.As(err, &answer) && answer.StatusCode == 400, "a refusal", err)
	check(strings.Contains(err.Error(), reason), "the reason", err)
}

func parameters() {
	_, err := client.PutVhost("traced", rabbithole.VhostSettings{Tracing: true})
	refused(err, "cannot trace vhost 'traced'")
	_, err = client.GetVhost("traced")
	gone("a refused virtual host", err)
	value := map[string]any{"uri": "amqp://elsewhere"}
	response, err := client.PutRuntimeParameter("odd", vhost, "one", value)
	done("set a parameter", response, err)
	known := must(client.GetRuntimeParameter("odd", vhost, "one"))
	check(known.Name == "one", "the parameter", known)
	response, err = client.DeleteRuntimeParameter("odd", vhost, "one")
	done("delete a parameter", response, err)
	_, err = client.GetRuntimeParameter("odd", vhost, "one")
	gone("a deleted parameter", err)
	response, err = client.PutGlobalParameter("colour", "green")
	done("set a global parameter", response, err)
	check(must(client.GetGlobalParameter("colour")).Value == "green", "the global parameter")
	response, err = client.DeleteGlobalParameter("colour")
	done("delete a global parameter", response, err)
}

func definitions() {
	all := must(client.ListDefinitions())
	check(all.Users != nil && all.GlobalParameters != nil, "definitions", all)
	part := must(client.ListVhostDefinitions(vhost))
	check(part.Queues != nil, "the definitions of a virtual host", part)
	response, err := client.UploadDefinitions(&rabbithole.ExportedDefinitions{
		Vhosts: &[]rabbithole.VhostInfo{{Name: "uploaded"}},
	})
	done("upload definitions", response, err)
	must(client.GetVhost("uploaded"))
	response, err = client.DeleteVhost("uploaded")
	done("delete a virtual host", response, err)
}

func main() {
	client = must(rabbithole.NewClient(os.Args[1], "guest", "guest"))
	overview()
	virtualHosts()
	users()
	topology()
	policies()
	parameters()
	definitions()
	check(len(must(client.ListConnections())) >= 0, "connections")
	must(client.ListChannels())
	must(client.ListConsumers())
	response, err := client.DeleteVhost(vhost)
	done("delete the virtual host", response, err)
	_, err = client.GetVhost(vhost)
	gone("the deleted virtual host", err)
	fmt.Println("ok")
}
