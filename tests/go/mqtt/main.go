// Checks the features of Eclipse's two Go clients against a broker (version4.go: MQTT 3.1.1, version5.go: MQTT 5): prints "ok", or
// the first failed check and exits with code 1.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"time"
)

// message is a publication that either library delivered.
type message struct {
	topic, payload string
	qos            byte
	retained       bool
}

func must(err error, what string) {
	if err != nil {
		fmt.Println(what+":", err)
		os.Exit(1)
	}
}

func want(truth bool, what string) {
	if !truth {
		fmt.Println("check failed:", what)
		os.Exit(1)
	}
}

func next[T any](from <-chan T, what string) T {
	select {
	case one := <-from:
		return one
	case <-time.After(10 * time.Second):
		fmt.Println("nothing arrived within 10 s:", what)
		os.Exit(1)
		panic("unreachable")
	}
}

func wantNext(from <-chan message, topic, payload string, qos byte, retained bool) {
	one := next(from, topic)
	want(one == message{topic, payload, qos, retained}, fmt.Sprint(topic, " arrived as ", one))
}

// client is the interface through which the scenarios use either library.
type client interface {
	subscribe(filter string, qos byte)
	publish(topic, payload string, qos byte, retain bool)
	received() <-chan message
	// cut drops the connection without a DISCONNECT packet.
	cut()
	leave()
}

// connect returns a connected client; resumed is true if the broker had its session.
type connect func(name string, clean bool, will *message) (one client, resumed bool)

func scenarios(connect connect, prefix string) {
	listener, _ := connect(prefix+"listener", true, nil)
	writer, _ := connect(prefix+"writer", true, nil)
	topic := func(level string) string { return prefix + "/" + level }

	listener.subscribe(topic("plain/#"), 2)
	for qos := byte(0); qos <= 2; qos++ {
		for n := 0; n < 50; n++ {
			writer.publish(topic("plain/x"), fmt.Sprint(n), qos, false)
		}
		for n := 0; n < 50; n++ {
			wantNext(listener.received(), topic("plain/x"), fmt.Sprint(n), qos, false)
		}
	}

	writer.publish(topic("lamp"), "on", 1, true)
	late, _ := connect(prefix+"late", true, nil)
	late.subscribe(topic("+"), 1)
	wantNext(late.received(), topic("lamp"), "on", 1, true)
	writer.publish(topic("lamp"), "", 1, true)
	wantNext(late.received(), topic("lamp"), "", 1, false)
	late.leave()

	listener.subscribe(topic("will"), 1)
	mortal, _ := connect(prefix+"mortal", true, &message{topic("will"), "gone", 1, false})
	mortal.cut()
	wantNext(listener.received(), topic("will"), "gone", 1, false)

	one, _ := connect(prefix+"one", true, nil)
	two, _ := connect(prefix+"two", true, nil)
	one.subscribe("$share/group/"+topic("jobs"), 1)
	two.subscribe("$share/group/"+topic("jobs"), 1)
	for n := 0; n < 20; n++ {
		writer.publish(topic("jobs"), fmt.Sprintf("%02d", n), 1, false)
	}
	var jobs []string
	for n := 0; n < 10; n++ {
		jobs = append(jobs, next(one.received(), "a job").payload, next(two.received(), "a job").payload)
	}
	sort.Strings(jobs)
	want(strings.Join(jobs, "") == "0001020304050607080910111213141516171819", fmt.Sprint("shared: ", jobs))
	one.leave()
	two.leave()

	sleeper, resumed := connect(prefix+"sleeper", false, nil)
	want(!resumed, "a first session is new")
	sleeper.subscribe(topic("kept"), 2)
	sleeper.cut()
	writer.publish(topic("kept"), "first", 1, false)
	writer.publish(topic("kept"), "second", 2, false)
	sleeper, resumed = connect(prefix+"sleeper", false, nil)
	want(resumed, "the session is resumed")
	wantNext(sleeper.received(), topic("kept"), "first", 1, false)
	wantNext(sleeper.received(), topic("kept"), "second", 2, false)
	sleeper.leave()
	listener.leave()
	writer.leave()
}

func main() {
	address, prefix := os.Args[1], os.Args[2]
	scenarios(version4(address), prefix+"v4")
	scenarios(version5(address), prefix+"v5")
	properties(address, prefix+"properties")
	fmt.Println("ok")
}
