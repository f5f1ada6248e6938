// Works through what users of Eclipse's two Go clients rely on (version4.go: 3.1.1, version5.go: 5), and prints "ok"; the first
// surprise is printed instead.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"time"
)

// heard is a publication as either library gave it.
type heard struct {
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
		fmt.Println("not so:", what)
		os.Exit(1)
	}
}

func next[T any](from <-chan T, what string) T {
	select {
	case one := <-from:
		return one
	case <-time.After(10 * time.Second):
		fmt.Println("nothing came:", what)
		os.Exit(1)
		panic("unreachable")
	}
}

func wantNext(from <-chan heard, topic, payload string, qos byte, retained bool) {
	one := next(from, topic)
	want(one == heard{topic, payload, qos, retained}, fmt.Sprint(topic, " came as ", one))
}

// client is what the scenarios need of either library.
type client interface {
	subscribe(filter string, qos byte)
	publish(topic, payload string, qos byte, retain bool)
	heard() <-chan heard
	// cut loses the connection without a DISCONNECT.
	cut()
	leave()
}

// connect makes a client; resumed tells whether the broker had its session.
type connect func(name string, clean bool, will *heard) (one client, resumed bool)

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
			wantNext(listener.heard(), topic("plain/x"), fmt.Sprint(n), qos, false)
		}
	}

	writer.publish(topic("lamp"), "on", 1, true)
	late, _ := connect(prefix+"late", true, nil)
	late.subscribe(topic("+"), 1)
	wantNext(late.heard(), topic("lamp"), "on", 1, true)
	writer.publish(topic("lamp"), "", 1, true)
	wantNext(late.heard(), topic("lamp"), "", 1, false)
	late.leave()

	listener.subscribe(topic("will"), 1)
	mortal, _ := connect(prefix+"mortal", true, &heard{topic("will"), "gone", 1, false})
	mortal.cut()
	wantNext(listener.heard(), topic("will"), "gone", 1, false)

	one, _ := connect(prefix+"one", true, nil)
	two, _ := connect(prefix+"two", true, nil)
	one.subscribe("$share/group/"+topic("jobs"), 1)
	two.subscribe("$share/group/"+topic("jobs"), 1)
	for n := 0; n < 20; n++ {
		writer.publish(topic("jobs"), fmt.Sprintf("%02d", n), 1, false)
	}
	var jobs []string
	for n := 0; n < 10; n++ {
		jobs = append(jobs, next(one.heard(), "a job").payload, next(two.heard(), "a job").payload)
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
	want(resumed, "the session is there")
	wantNext(sleeper.heard(), topic("kept"), "first", 1, false)
	wantNext(sleeper.heard(), topic("kept"), "second", 2, false)
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
