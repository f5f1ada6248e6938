// Answers the requests of `trellis bench matching` for topic matchers written in Go: peers NAME.
//
//	trie          a word trie behind a read-write lock, as article 1 describes it
//	ctrie         article 1's concurrent trie: I-, C- and T-nodes, no lock
//	nats          the sublist of nats-server, without its cache
//	nats-cached   the sublist of nats-server, with its cache of answers
//
// A matcher's answers are numbers of subscribers. Time is the CPU time of the measuring thread; the garbage collector's
// own threads are not counted, which favours Go. Memory is the reachable heap.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Matcher is the interface of all matchers. Subscribe and Unsubscribe take a subscription that Prepare has made.
type Matcher interface {
	Prepare(pattern string, subscriber uint64) any // returns the subscription
	Subscribe(prepared any)
	Unsubscribe(prepared any)
	Match(topic string) int                       // returns the number of subscribers
	Each(topic string, visit func(number uint64)) // calls visit with the number of each subscriber
}

var makers = map[string]func() Matcher{
	"trie":        func() Matcher { return newTrie() },
	"ctrie":       func() Matcher { return newConcurrent() },
	"nats":        func() Matcher { return newNats(false) },
	"nats-cached": func() Matcher { return newNats(true) },
}

type request struct {
	Kind, Patterns, Topics, Further, Pattern, Topic string
	Seconds                                         float64
	Every, Readers, Writers, Mixed                  int
	Expected                                        [][3]uint64
}

type answer map[string]any

var errUnable = errors.New("NATS permits `#` only at the end of a pattern")

func main() {
	if len(os.Args) != 2 || makers[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peers trie|ctrie|nats|nats-cached")
		os.Exit(2)
	}
	name := os.Args[1]
	runtime.LockOSThread()
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var query request
		if err := json.Unmarshal(in.Bytes(), &query); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := out.Encode(do(name, query)); err != nil {
			os.Exit(1)
		}
		runtime.GC()
	}
}

func do(name string, query request) answer {
	if query.Kind == "about" {
		return answer{"version": version(name)}
	}
	if query.Kind == "cold" {
		return cold(makers[name], query)
	}
	patterns := lines(query.Patterns)
	for _, pattern := range patterns {
		if !able(name, pattern) {
			return answer{"unable": errUnable.Error()}
		}
	}
	switch query.Kind {
	case "workload":
		return workload(makers[name](), patterns, lines(query.Topics), lines(query.Further), query)
	case "memory":
		return memory(makers[name], patterns)
	case "threads":
		return threads(makers[name](), patterns, lines(query.Topics), lines(query.Further), query)
	case "churn":
		return churn(makers[name](), patterns, lines(query.Topics), lines(query.Further), query)
	}
	return answer{"unable": "unknown request " + query.Kind}
}

// able returns true if the matcher's grammar has the pattern: NATS has `#` at the end only.
func able(name, pattern string) bool {
	at := strings.Index(pattern, "#")
	return at < 0 || !strings.HasPrefix(name, "nats") || at == len(pattern)-1
}

func lines(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Each line is a separate string, as if received from a network.
	texts := strings.Split(string(data), "\n")
	for i := range texts {
		texts[i] = strings.Clone(texts[i])
	}
	return texts
}

func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

func prepare(m Matcher, patterns []string, first int) []any {
	prepared := make([]any, len(patterns))
	for i, pattern := range patterns {
		prepared[i] = m.Prepare(pattern, uint64(first+i))
	}
	return prepared
}

// check compares the answers for topics with the expected ones; see trellis/bench/matching/answers.py.
func check(m Matcher, topics []string, expected [][3]uint64) string {
	for _, wanted := range expected {
		var count, digest uint64
		for i, topic := range topics[:wanted[0]] {
			row := uint64(i+1) * 0x9E3779B97F4A7C15
			m.Each(topic, func(number uint64) {
				count++
				digest += row ^ (number+1)*0xC2B2AE3D27D4EB4F
			})
		}
		if count != wanted[1] || digest != wanted[2] {
			return fmt.Sprintf("%d topics found %d subscribers (digest %x), not %d (%x)", wanted[0], count, digest, wanted[1], wanted[2])
		}
	}
	return ""
}

const chunk = 200_000 // ns that are timed at once, unless there are no more calls

// perCall returns the nanoseconds per call, over the items in turn, measured for about this long.
func perCall(items int, seconds float64, call func(i int)) float64 {
	var spent, done int64
	calls, at := 1, 0
	for spent < int64(seconds*1e9) || done == 0 {
		end := min(at+calls, items)
		began := clock()
		for i := at; i < end; i++ {
			call(i)
		}
		took := clock() - began
		if took >= chunk || calls >= min(4096, items) {
			spent += max(took, 1)
			done += int64(end - at)
		} else {
			calls *= 2
		}
		at = end % items
	}
	return float64(spent) / float64(done)
}

func workload(m Matcher, patterns, topics, further []string, query request) answer {
	prepared := prepare(m, patterns, 0)
	runtime.GC()
	began := clock()
	for _, each := range prepared {
		m.Subscribe(each)
	}
	load := float64(clock()-began) / float64(len(patterns))
	runtime.GC()
	done, began := 0, clock()
	for done < len(topics) && (done == 0 || done%64 != 0 || clock()-began < int64(4*query.Seconds*1e9)) {
		m.Match(topics[done])
		done++
	}
	first := float64(clock()-began) / float64(done)
	if problem := check(m, topics, query.Expected); problem != "" {
		return answer{"wrong": problem}
	}
	topics = topics[:done]
	lookup := perCall(len(topics), query.Seconds, func(i int) { m.Match(topics[i]) })
	more := prepare(m, further, len(patterns))
	runtime.GC()
	var in, out, times int64
	for in+out < int64(query.Seconds*1e9) {
		began := clock()
		for _, each := range more {
			m.Subscribe(each)
		}
		middle := clock()
		for _, each := range more {
			m.Unsubscribe(each)
		}
		in += middle - began
		out += clock() - middle
		times += int64(len(more))
	}
	if problem := check(m, lines(query.Topics), query.Expected[:1]); problem != "" {
		return answer{"wrong": problem}
	}
	return answer{"lookup": lookup, "first": first, "subscribe": float64(in) / float64(times), "unsubscribe": float64(out) / float64(times),
		"load": load}
}

func cold(maker func() Matcher, query request) answer {
	var in, out, times int64
	for in+out < int64(query.Seconds*1e9) {
		matchers := make([]Matcher, 256)
		prepared := make([]any, len(matchers))
		for i := range matchers {
			matchers[i] = maker()
			prepared[i] = matchers[i].Prepare(query.Pattern, 0)
		}
		began := clock()
		for i, m := range matchers {
			m.Subscribe(prepared[i])
		}
		middle := clock()
		for i, m := range matchers {
			m.Unsubscribe(prepared[i])
		}
		in += middle - began
		out += clock() - middle
		times += int64(len(matchers))
	}
	m := maker()
	m.Subscribe(m.Prepare(query.Pattern, 0))
	if m.Match(query.Topic) != 1 {
		return answer{"wrong": "the one pattern is not found"}
	}
	lookup := perCall(4096, query.Seconds, func(int) { m.Match(query.Topic) })
	return answer{"subscribe": float64(in) / float64(times), "unsubscribe": float64(out) / float64(times), "lookup": lookup}
}

// memory does not count prepared values: they are the subscribers, which a server has anyway.
func memory(maker func() Matcher, patterns []string) answer {
	copies := (60_000 + len(patterns) - 1) / len(patterns)
	matchers := make([]Matcher, copies)
	prepared := make([][]any, copies)
	for i := range matchers {
		matchers[i] = maker()
		prepared[i] = prepare(matchers[i], patterns, 0)
	}
	before := heap()
	for i, m := range matchers {
		for _, each := range prepared[i] {
			m.Subscribe(each)
		}
	}
	after := heap()
	runtime.KeepAlive(matchers)
	runtime.KeepAlive(prepared)
	runtime.KeepAlive(patterns)
	return answer{"octets": (float64(after) - float64(before)) / float64(copies*len(patterns))}
}

func heap() uint64 {
	var memory runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}

// threads is the test of articles 1 and 2: wall-clock milliseconds until all workers have done 1,000 operations each.
func threads(m Matcher, patterns, topics, further []string, query request) answer {
	for _, each := range prepare(m, patterns, 0) {
		m.Subscribe(each)
	}
	more := prepare(m, further, len(patterns))
	var all sync.WaitGroup
	start := make(chan struct{})
	worker := func(mine []any, reads int) {
		all.Add(1)
		go func() {
			defer all.Done()
			<-start
			at := 0
			for _, each := range mine {
				m.Subscribe(each)
				for range reads {
					m.Match(topics[at%len(topics)])
					at++
				}
			}
			if len(mine) == 0 {
				for _, topic := range topics[:reads] {
					m.Match(topic)
				}
			}
		}()
	}
	at := 0
	for range query.Writers {
		worker(more[at:at+1000], 0)
		at += 1000
	}
	for range query.Mixed {
		worker(more[at:at+100], 9)
		at += 100
	}
	for range query.Readers {
		worker(nil, 1000)
	}
	began := time.Now()
	close(start)
	all.Wait()
	took := time.Since(began)
	for i := range at {
		count, right := 0, false
		m.Each(further[i], func(number uint64) { count++; right = number == uint64(len(patterns)+i) })
		if count != 1 || !right {
			return answer{"wrong": "after the threads " + further[i] + " does not find its subscriber"}
		}
	}
	return answer{"ms": float64(took.Nanoseconds()) / 1e6}
}

func churn(m Matcher, patterns, topics, further []string, query request) answer {
	for _, each := range prepare(m, patterns, 0) {
		m.Subscribe(each)
	}
	more := prepare(m, further, len(patterns))
	for _, topic := range topics {
		m.Match(topic)
	}
	size := query.Every
	if size == 0 {
		size = 1000
	}
	change := 0
	var spent, done int64
	for at := 0; spent < int64(query.Seconds*1e9); at += size {
		if at+size > len(topics) {
			at = 0
		}
		began := clock()
		for _, topic := range topics[at : at+size] {
			m.Match(topic)
		}
		if query.Every > 0 {
			each := more[change/2%len(more)]
			if change%2 == 0 {
				m.Subscribe(each)
			} else {
				m.Unsubscribe(each)
			}
			change++
		}
		spent += clock() - began
		done += int64(size)
	}
	if change%2 == 1 {
		m.Unsubscribe(more[change/2%len(more)])
	}
	if problem := check(m, topics, query.Expected); problem != "" {
		return answer{"wrong": problem}
	}
	return answer{"publish": float64(spent) / float64(done)}
}
