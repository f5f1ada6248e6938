package main

import (
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"unsafe"

	"github.com/nats-io/nats-server/v2/server"
)

// The sublist's entries have an unexported type. The compiler can infer it from the type of Insert, and reflection gives
// the offsets of its subject and of the found entries. So calls are direct, as in the server.

// natsOf is the sublist with entries T; an entry's sid holds the subscriber's number.
type natsOf[T any] struct {
	list               *server.Sublist
	insert, remove     func(*server.Sublist, *T) error
	subject, sid, psub uintptr
}

func newNats(cache bool) Matcher {
	list := server.NewSublist(cache)
	return natsFor(list, (*server.Sublist).Insert, (*server.Sublist).Remove)
}

func natsFor[T any](list *server.Sublist, insert, remove func(*server.Sublist, *T) error) Matcher {
	entry := reflect.TypeFor[T]()
	return &natsOf[T]{list, insert, remove, offset(entry, "subject"), offset(entry, "sid"),
		offset(reflect.TypeFor[server.SublistResult](), "psubs")}
}

func offset(of reflect.Type, name string) uintptr {
	field, exists := of.FieldByName(name)
	if !exists {
		panic("this version of nats-server has no field " + name)
	}
	return field.Offset
}

func (m *natsOf[T]) Prepare(pattern string, subscriber uint64) any {
	entry := new(T)
	base := unsafe.Pointer(entry)
	*(*[]byte)(unsafe.Add(base, m.subject)) = []byte(strings.Replace(pattern, "#", ">", 1))
	number := make([]byte, 8)
	for i := range number {
		number[i] = byte(subscriber >> (8 * i))
	}
	*(*[]byte)(unsafe.Add(base, m.sid)) = number
	return entry
}

func (m *natsOf[T]) Subscribe(prepared any) {
	if err := m.insert(m.list, prepared.(*T)); err != nil {
		panic(err)
	}
}

func (m *natsOf[T]) Unsubscribe(prepared any) {
	if err := m.remove(m.list, prepared.(*T)); err != nil {
		panic(err)
	}
}

func (m *natsOf[T]) entries(topic string) []*T {
	return *(*[]*T)(unsafe.Add(unsafe.Pointer(m.list.Match(topic)), m.psub))
}

func (m *natsOf[T]) Match(topic string) int { return len(m.entries(topic)) }

func (m *natsOf[T]) Each(topic string, visit func(uint64)) {
	for _, entry := range m.entries(topic) {
		var number uint64
		for i, b := range *(*[]byte)(unsafe.Add(unsafe.Pointer(entry), m.sid)) {
			number |= uint64(b) << (8 * i)
		}
		visit(number)
	}
}

func version(name string) string {
	built, _ := debug.ReadBuildInfo()
	if strings.HasPrefix(name, "nats") && built != nil {
		for _, each := range built.Deps {
			if each.Path == "github.com/nats-io/nats-server/v2" {
				return "nats-server " + each.Version + ", " + runtime.Version()
			}
		}
	}
	return runtime.Version()
}
