package main

import (
	"slices"
	"sync/atomic"
)

// concurrent is article 1's concurrent subscription trie, from the description there and in article 2:
//
//	I-node --> C-node: word -> branch (subscribers, I-node or none)
//	       `-> T-node: empty and final; the branch above must be replaced by one without an I-node
//
// A change copies a C-node and exchanges it by a CAS on its I-node, or restarts. A lookup takes no snapshot and
// validates nothing, as in the article (whose lookup can return a state that never existed). `#` is supported at the end of
// a pattern, and elsewhere by trying the rest of the topic from each word on, as in the trie.
type concurrent struct{ root *inode }

type inode struct{ main atomic.Pointer[cnode] }

// cnode is an immutable C-node, or a T-node if it is `tomb`.
type cnode struct {
	branches map[string]*branch
	tomb     bool
}

type branch struct {
	subscribers []uint64
	below       *inode
}

func newConcurrent() *concurrent {
	m := &concurrent{&inode{}}
	m.root.main.Store(&cnode{})
	return m
}

func (m *concurrent) Prepare(pattern string, subscriber uint64) any {
	return &entry{split(pattern), subscriber}
}

func (m *concurrent) Subscribe(prepared any) {
	each := prepared.(*entry)
	for !m.root.insert(each.words, each.subscriber, nil, "") {
	}
}

func (m *concurrent) Unsubscribe(prepared any) {
	each := prepared.(*entry)
	for !m.root.remove(each.words, each.subscriber, nil, "") {
	}
}

// with returns a copy of the C-node with the word's branch replaced, or removed.
func (c *cnode) with(word string, to *branch) *cnode {
	copied := make(map[string]*branch, len(c.branches)+1)
	for each, branch := range c.branches {
		copied[each] = branch
	}
	if to == nil {
		delete(copied, word)
	} else {
		copied[word] = to
	}
	return &cnode{branches: copied}
}

// chain returns a branch for these words with the subscriber at its end.
func chain(words []string, subscriber uint64) *branch {
	if len(words) == 0 {
		return &branch{subscribers: []uint64{subscriber}}
	}
	below := &inode{}
	below.main.Store(&cnode{branches: map[string]*branch{words[0]: chain(words[1:], subscriber)}})
	return &branch{below: below}
}

// insert adds the subscriber below the I-node; it returns false if it must restart.
func (i *inode) insert(words []string, subscriber uint64, parent *inode, key string) bool {
	now := i.main.Load()
	if now.tomb {
		parent.clean(key)
		return false
	}
	word, rest := words[0], words[1:]
	old := now.branches[word]
	switch {
	case old == nil:
		return i.main.CompareAndSwap(now, now.with(word, chain(rest, subscriber)))
	case len(rest) == 0:
		if slices.Contains(old.subscribers, subscriber) {
			return true
		}
		more := append(slices.Clip(slices.Clone(old.subscribers)), subscriber)
		return i.main.CompareAndSwap(now, now.with(word, &branch{more, old.below}))
	case old.below == nil:
		return i.main.CompareAndSwap(now, now.with(word, &branch{old.subscribers, chain(rest, subscriber).below}))
	}
	return old.below.insert(rest, subscriber, i, word)
}

// remove removes the subscriber below the I-node; it returns false if it must restart.
func (i *inode) remove(words []string, subscriber uint64, parent *inode, key string) bool {
	now := i.main.Load()
	if now.tomb {
		parent.clean(key)
		return false
	}
	word, rest := words[0], words[1:]
	old := now.branches[word]
	if old == nil {
		return true
	}
	if len(rest) > 0 {
		return old.below == nil || old.below.remove(rest, subscriber, i, word) && i.tidy(parent, key)
	}
	at := slices.Index(old.subscribers, subscriber)
	if at < 0 {
		return true
	}
	var less *branch
	if len(old.subscribers) > 1 || old.below != nil {
		less = &branch{slices.Delete(slices.Clone(old.subscribers), at, at+1), old.below}
	}
	return i.main.CompareAndSwap(now, now.with(word, less)) && i.tidy(parent, key)
}

// tidy turns an empty C-node into a T-node and removes it from the C-node above. It always returns true: a T-node that it
// cannot remove is removed by a later operation.
func (i *inode) tidy(parent *inode, key string) bool {
	now := i.main.Load()
	if parent != nil && !now.tomb && len(now.branches) == 0 {
		if i.main.CompareAndSwap(now, &cnode{tomb: true}) {
			parent.clean(key)
		}
	}
	return true
}

// clean replaces a branch whose I-node is a tomb by one without an I-node, or removes it if it has no subscribers.
func (i *inode) clean(key string) {
	for {
		now := i.main.Load()
		old := now.branches[key]
		if now.tomb || old == nil || old.below == nil || !old.below.main.Load().tomb {
			return
		}
		var less *branch
		if len(old.subscribers) > 0 {
			less = &branch{subscribers: old.subscribers}
		}
		if i.main.CompareAndSwap(now, now.with(key, less)) {
			return
		}
	}
}

func (m *concurrent) match(topic string) []uint64 {
	var numbers []uint64
	m.root.walk(split(topic), &numbers)
	return once(numbers)
}

// walk looks up one or more words.
func (i *inode) walk(words []string, numbers *[]uint64) {
	branches := i.main.Load().branches
	if many := branches["#"]; many != nil {
		*numbers = append(*numbers, many.subscribers...)
		if many.below != nil {
			for at := range words {
				many.below.walk(words[at:], numbers)
			}
		}
	}
	for _, word := range [2]string{words[0], "*"} {
		next := branches[word]
		if next == nil {
			continue
		}
		if len(words) > 1 {
			if next.below != nil {
				next.below.walk(words[1:], numbers)
			}
			continue
		}
		*numbers = append(*numbers, next.subscribers...)
		for below := next.below; below != nil; { // `a.#` matches `a`
			many := below.main.Load().branches["#"]
			if many == nil {
				break
			}
			*numbers = append(*numbers, many.subscribers...)
			below = many.below
		}
	}
}

func (m *concurrent) Match(topic string) int { return len(m.match(topic)) }

func (m *concurrent) Each(topic string, visit func(uint64)) {
	for _, number := range m.match(topic) {
		visit(number)
	}
}
