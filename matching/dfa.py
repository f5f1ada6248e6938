"""A deterministic automaton built lazily from the trie: one state per set of nodes that a topic
reached.

    trie      root --a--> 1 --*--> 2 [x]
                          `---#--> 3 [y] --b--> 4 [z]

    states    {root} --a--> {1 3} --b--> {2 3 4}        answer: x y z
                            {1 3} --other--> {2 3}      answer: x y

A ``#`` node enters a set together with its parent, and stays in all following sets. For a topic
whose words were looked up before, a lookup is one dict probe per word. All words for which no node
of a state has a child share one transition, `other`.

A change costs O(words), as in the trie, and touches no state. A clock counts the changes. A change
stamps the changed node with the clock, and each state records the clock at which it was last
checked. If a lookup reaches a state with an older clock, it compares the stamps of the state's
nodes with the state's clock, and discards the state's answer, its transitions or the whole state.

A pattern such as `#.a.*.*.*...` can produce a state for every subset of its wildcards. Therefore
the automaton has a memory budget, and a lookup creates only a limited number of states before it
continues in the trie. When the budget is used up, lookups continue in the trie where the automaton
ends; no state is evicted, because it would only be built again. If the budget is used up and there
were more changes than states, most states may be unreachable. The automaton then starts again
without states and frees the old states a few at a time.

Costs: O(words) per lookup of a known topic, otherwise as in `trie`; memory for the trie and up to
the budget (96 MiB by default). Choose this matcher if the same topics, or topics with the same
beginning, recur and subscriptions seldom change. Source: article 5 (listed in `matching`), which
rebuilds the whole automaton at each new binding.
"""

from __future__ import annotations

from typing import Final, Generic, cast

from matching.bucket import take
from matching.grammar import Grammar
from matching.matcher import S
from matching.trie import Trie
from matching.trie_search import TrieNode
from matching.trie_walk import advance

#: The most nodes that one lookup visits to create or check states. This number of visits takes 0.1
#: ms in interpreted Python.
_EFFORT: Final = 256
#: The most subscribers in a stored answer. A longer answer is collected from the nodes at each
#: lookup. Otherwise the 20,000 subscribers of one filter would be stored in many states.
_LONGEST_ANSWER: Final = 64
#: Size in bytes of a state without nodes (CPython 3.11, estimated with sys.getsizeof).
_STATE_SIZE: Final = 320
#: Size in bytes of a step from one state to the next.
_STEP_SIZE: Final = 100
#: Size in bytes of an answer without subscribers.
_ANSWER_SIZE: Final = 64
#: The number of old states that are freed each time a new state is created.
_FREED: Final = 16


class _Stamped(TrieNode):
    """A trie node that records when its children and its subscribers last changed.

    The times are values of the trie's clock, which counts the changes of the trie.
    """

    __slots__ = ("bucket_clock", "children_clock", "number", "stays")

    def __init__(self, depth: int, number: int, stays: bool, clock: int) -> None:
        super().__init__(depth)
        #: The number of this node in the order of creation; a state's nodes are sorted by number.
        self.number = number
        #: True for a `#` node, which stays active for all following words.
        self.stays = stays
        self.children_clock = clock
        self.bucket_clock = clock


class _DfaState(Generic[S]):
    """A set of trie nodes that a topic may have reached.

    `steps` are the transitions: the next state for each word. `checked` is the
    trie's clock (its number of changes) at the last time that the answer and the transitions were
    found valid; -1 marks a discarded state.
    """

    __slots__ = ("answer", "checked", "following", "nodes", "other", "size", "steps", "word")

    def __init__(self, nodes: tuple[_Stamped, ...], clock: int) -> None:
        self.nodes = nodes
        self.checked = clock
        self.size = _STATE_SIZE + 8 * len(nodes)
        #: The word and the target of the first step are stored here, further steps in `steps`. Most
        #: states have one step, and comparing a word is cheaper than a dict probe.
        self.word = ""
        self.following: _DfaState[S] | None = None
        self.steps: dict[str, _DfaState[S]] = {}
        self.other: _DfaState[S] | None = None
        self.answer: list[S] | None = None


class Dfa(Trie[S]):
    """The matcher for recurring topics and patterns that seldom change."""

    def __init__(self, grammar: Grammar, budget: int = 96 << 20) -> None:
        """Create an empty matcher. Its automaton takes at most about `budget` bytes, in addition to
        the trie.
        """
        self._budget: Final = budget
        self._clock = 0
        self._numbers = 0
        self._restart()
        super().__init__(grammar)

    def _restart(self) -> None:
        self._states: dict[tuple[_Stamped, ...], _DfaState[S]] = {}
        self._old: dict[tuple[_Stamped, ...], _DfaState[S]] = {}
        self._restarted = self._clock
        self._used = 0
        self._effort = 0
        self._start: _DfaState[S] | None = None

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        if not super().unsubscribe(pattern, subscriber):
            return False
        if not self._pairs:
            self._restart()
        return True

    def match(self, topic: str) -> list[S]:
        """Return the subscribers of a topic. Hot path if all transitions are stored.

        If a transition is missing or outdated, `_match_slowly` looks up the whole topic.
        """
        state = self._start
        clock = self._clock
        grammar = self.grammar
        if state is None or state.checked != clock or grammar.hides and grammar.hidden(topic):
            return self._match_slowly(topic)
        for word in topic.split(grammar.separator) if topic else grammar.split(topic):
            following = state.following if word == state.word else state.steps.get(word)
            if following is None or following.checked != clock:
                following = _other(state, word)
                if following is None:
                    return self._match_slowly(topic)
            state = following
        answer = state.answer
        return self._match_slowly(topic) if answer is None else answer.copy()

    def _match_slowly(self, topic: str) -> list[S]:
        """Return the subscribers of a topic, and create or update the states on its path.

        If the limit of nodes per lookup (_EFFORT) or the memory budget is reached, the rest of the
        topic is looked up in the trie.
        """
        if not self._pairs:
            return []
        grammar = self.grammar
        words = grammar.split(topic)
        clock = self._clock
        self._effort = _EFFORT
        at = 0
        if grammar.hides and grammar.hidden(topic):
            at = 1
            child = None if self._root.children is None else self._root.children.get(words[0])
            if child is None:
                return []
            start = [cast(_Stamped, child)]
            state = self._state(start)
        else:
            start = [cast(_Stamped, self._root)]
            state = self._start
            if state is None or state.checked != clock:
                state = self._start = self._state(start)
        if state is None:
            return self._walk_trie(_closure(start), words, at)
        end = len(words)
        while at < end:
            word = words[at]
            following = state.following if word == state.word else state.steps.get(word)
            if following is None or following.checked != clock:
                following = self._step(state, word, following)
                if following is None:
                    return self._walk_trie(list(state.nodes), words, at)
            state = following
            at += 1
        answer = state.answer
        return self._answer(state) if answer is None else answer.copy()

    def clear(self) -> None:
        super().clear()
        self._restart()

    def stats(self) -> dict[str, int]:
        """Return the sizes of the trie and the automaton.

        `states` and `bytes` (their memory) include old states that are still to be freed.
        """
        return {
            **super().stats(),
            "states": len(self._states) + len(self._old),
            "bytes": self._used,
        }

    def _step(
        self, state: _DfaState[S], word: str, known: _DfaState[S] | None
    ) -> _DfaState[S] | None:
        """Return the state to which the word leads from `state`.

        `known` is the stored next state for this word, or None. Return `known` if this state is
        still valid. Return None if the lookup would visit more than _EFFORT nodes, or if a new
        state would exceed the memory budget.
        """
        if not self._check(known, len(state.nodes)):
            return None
        if known is not None and known.checked == self._clock:
            return known
        literal = False
        for node in state.nodes:
            children = node.children
            if children is not None and word in children:
                literal = True
                break
        other = state.other
        if not literal and other is not None:
            if not self._check(other, 0):
                return None
            if other.checked == self._clock:
                return other
        nodes: list[_Stamped] = []
        for node in state.nodes:
            if node.stays:
                nodes.append(node)
            if node.one is not None:
                nodes.append(cast(_Stamped, node.one))
            children = node.children
            if literal and children is not None:
                child = children.get(word)
                if child is not None:
                    nodes.append(cast(_Stamped, child))
        following = self._state(nodes)
        if following is None:
            return None
        if not literal:
            state.other = following
        elif word in state.steps:
            state.steps[word] = following
        elif state.following is not None and word == state.word:
            state.following = following
        elif self._afford(_STEP_SIZE, state):
            # All states share the trie's string object for this word, to save memory.
            word = self._pool.get(word, word)
            if state.following is None:
                state.word = word
                state.following = following
            else:
                state.steps[word] = following
        return following

    def _state(self, some: list[_Stamped]) -> _DfaState[S] | None:
        """Return the state that stands for the nodes `some` and the ``#`` nodes directly below.

        Create the state if it does not exist. Return None if the lookup would visit more than
        _EFFORT nodes, or if a new state would exceed the memory budget.
        """
        nodes = _closure(some)
        nodes.sort(key=_number)
        key = tuple(nodes)
        state = self._states.get(key)
        if not self._check(state, len(nodes)):
            return None
        if state is not None and state.checked == self._clock:
            return state
        self._free()
        state = _DfaState(key, self._clock)
        if self._used + state.size > self._budget:
            if not self._old and self._clock - self._restarted > len(self._states):
                self._old = self._states
                self._states = {}
                self._restarted = self._clock
                self._start = None
            return None
        self._used += state.size
        self._states[key] = state
        return state

    def _check(self, state: _DfaState[S] | None, nodes: int) -> bool:
        """Bring a state up to date, or discard it if its set of nodes has changed.

        The visited nodes, plus `nodes` further nodes, count towards the lookup's limit (_EFFORT).
        Return True if the limit permits them; otherwise return False and leave the state unchanged.
        """
        if state is None or state.checked == self._clock or state.checked < 0:
            self._effort -= nodes + 1
            return self._effort >= 0
        self._effort -= nodes + len(state.nodes) + 1
        if self._effort < 0:
            return False
        children_changed = False
        bucket_changed = False
        for node in state.nodes:
            children_changed = children_changed or node.children_clock > state.checked
            bucket_changed = bucket_changed or node.bucket_clock > state.checked
        if children_changed and _closure(list(state.nodes)) != list(state.nodes):
            self._discard(state)
            return True
        if children_changed or bucket_changed:
            size = 0 if state.answer is None else _ANSWER_SIZE + 8 * len(state.answer)
            state.answer = None
            if children_changed:
                size += _STEP_SIZE * (len(state.steps) + (state.following is not None))
                _drop_steps(state)
            state.size -= size
            self._used -= size
        state.checked = self._clock
        return True

    def _answer(self, state: _DfaState[S]) -> list[S]:
        """Return the subscribers of the state's nodes.

        The state caches the list if it has at most _LONGEST_ANSWER subscribers and the memory
        budget permits it.
        """
        subscribers: list[S] = []
        for node in state.nodes:
            take(node.bucket, subscribers)
        if self._tally.shared:
            subscribers = self._tally.distinct(subscribers)
        if len(subscribers) <= _LONGEST_ANSWER and self._afford(
            _ANSWER_SIZE + 8 * len(subscribers), state
        ):
            state.answer = subscribers.copy()
        return subscribers

    def _walk_trie(self, nodes: list[_Stamped], words: list[str], at: int) -> list[S]:
        """Complete a lookup in the trie, without the automaton, and return the subscribers.

        `nodes` are the nodes to which the words of the topic before the index `at` have led.
        """
        subscribers: list[S] = []
        stays: list[TrieNode] = []
        moving: list[TrieNode] = []
        entered: set[TrieNode] = set()
        for node in nodes:
            if not node.stays:
                moving.append(node)
            else:
                entered.add(node)
                take(node.bucket, subscribers)
                if node.children is not None or node.one is not None:
                    stays.append(node)
        advance(stays, moving, entered, words, at, subscribers)
        return self._tally.distinct(subscribers) if self._tally.shared else subscribers

    def _afford(self, size: int, state: _DfaState[S]) -> bool:
        """Charge `size` bytes to the memory of the state and of the automaton, and return True.

        Return False and charge nothing if the budget does not permit it.
        """
        if self._used + size > self._budget:
            return False
        self._used += size
        state.size += size
        return True

    def _discard(self, state: _DfaState[S]) -> None:
        """Discard a state, and set its `checked` to -1.

        Other states may still refer to the discarded state as their next state. A lookup sees the
        -1, and does not use the state.
        """
        self._used -= state.size
        state.checked = -1
        _drop_steps(state)
        state.answer = None
        self._states.pop(state.nodes, None)

    def _free(self) -> None:
        """Free a few of the states that were in use before the automaton last started over."""
        for _ in range(min(_FREED, len(self._old))):
            self._discard(self._old.popitem()[1])

    def _new_node(self, depth: int, many: bool) -> TrieNode:
        self._numbers += 1
        return _Stamped(depth, self._numbers, many, self._clock)

    def _children_changed(self, node: TrieNode) -> None:
        self._clock += 1
        cast(_Stamped, node).children_clock = self._clock

    def _bucket_changed(self, node: TrieNode) -> None:
        self._clock += 1
        cast(_Stamped, node).bucket_clock = self._clock


def _drop_steps(state: _DfaState[S]) -> None:
    """Remove all stored transitions of the state to other states."""
    state.word = ""
    state.following = None
    state.steps = {}
    state.other = None


def _other(state: _DfaState[S], word: str) -> _DfaState[S] | None:
    """Return the next state for a word for which no node of the state has a child.

    All such words lead to one next state. Return None if a node of the state has a child for this
    word, or if the next state is unknown or outdated.
    """
    other = state.other
    if other is None or other.checked != state.checked:
        return None
    for node in state.nodes:
        children = node.children
        if children is not None and word in children:
            return None
    return other


def _closure(nodes: list[_Stamped]) -> list[_Stamped]:
    """Return the nodes that are still in the trie, followed by the ``#`` nodes below them.

    A ``#`` node is included if only ``#`` nodes lie between it and one of these nodes.
    """
    there = [node for node in nodes if not _bare(node)]
    known = set(there)
    for node in there:
        if node.many is not None and node.many not in known:
            many = cast(_Stamped, node.many)
            known.add(many)
            there.append(many)
    return there


def _bare(node: _Stamped) -> bool:
    """True if the node has no subscribers and no children: the node was removed, or is an empty
    root.
    """
    return node.bucket is None and node.children is None and node.one is None and node.many is None


def _number(node: _Stamped) -> int:
    return node.number
