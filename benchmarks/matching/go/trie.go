package main

import (
	"slices"
	"strings"
	"sync"
)

// entry is a subscription: a pattern's words and its subscriber.
type entry struct {
	words      []string
	subscriber uint64
}

func split(topic string) []string {
	if topic == "" {
		return nil
	}
	return strings.Split(topic, ".")
}

// node is a trie node: its children, and the subscribers of the pattern that ends here.
type node struct {
	children    map[string]*node
	subscribers []uint64
}

// trie is article 1's trie behind one lock: it descends by word and by `*`, and for each `#` tries every rest of the topic.
type trie struct {
	lock sync.RWMutex
	root *node
}

func newTrie() *trie { return &trie{root: &node{}} }

func (m *trie) Prepare(pattern string, subscriber uint64) any {
	return &entry{split(pattern), subscriber}
}

func (m *trie) Subscribe(prepared any) {
	each := prepared.(*entry)
	m.lock.Lock()
	defer m.lock.Unlock()
	at := m.root
	for _, word := range each.words {
		next := at.children[word]
		if next == nil {
			if at.children == nil {
				at.children = map[string]*node{}
			}
			next = &node{}
			at.children[word] = next
		}
		at = next
	}
	if !slices.Contains(at.subscribers, each.subscriber) {
		at.subscribers = append(at.subscribers, each.subscriber)
	}
}

func (m *trie) Unsubscribe(prepared any) {
	each := prepared.(*entry)
	m.lock.Lock()
	defer m.lock.Unlock()
	m.root.without(each.words, each.subscriber)
}

// without removes the subscriber below the node, and nodes that become empty; it returns true if the node is empty.
func (at *node) without(words []string, subscriber uint64) bool {
	if len(words) == 0 {
		if i := slices.Index(at.subscribers, subscriber); i >= 0 {
			at.subscribers = slices.Delete(at.subscribers, i, i+1)
		}
	} else if next := at.children[words[0]]; next != nil && next.without(words[1:], subscriber) {
		delete(at.children, words[0])
	}
	return len(at.subscribers) == 0 && len(at.children) == 0
}

func (m *trie) match(topic string) []uint64 {
	m.lock.RLock()
	defer m.lock.RUnlock()
	var numbers []uint64
	m.root.walk(split(topic), &numbers)
	return once(numbers)
}

// once removes duplicates: a subscriber may have several matching patterns.
func once(numbers []uint64) []uint64 {
	if len(numbers) < 2 {
		return numbers
	}
	seen := make(map[uint64]struct{}, len(numbers))
	distinct := numbers[:0]
	for _, number := range numbers {
		if _, known := seen[number]; !known {
			seen[number] = struct{}{}
			distinct = append(distinct, number)
		}
	}
	return distinct
}

func (at *node) walk(words []string, numbers *[]uint64) {
	if many := at.children["#"]; many != nil {
		for i := range words {
			if len(many.children) > 0 {
				many.walk(words[i:], numbers)
			}
		}
		*numbers = append(*numbers, many.subscribers...)
	}
	if len(words) == 0 {
		*numbers = append(*numbers, at.subscribers...)
		return
	}
	if next := at.children[words[0]]; next != nil {
		next.walk(words[1:], numbers)
	}
	if next := at.children["*"]; next != nil {
		next.walk(words[1:], numbers)
	}
}

func (m *trie) Match(topic string) int { return len(m.match(topic)) }

func (m *trie) Each(topic string, visit func(uint64)) {
	for _, number := range m.match(topic) {
		visit(number)
	}
}
