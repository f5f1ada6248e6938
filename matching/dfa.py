"""A DFA made from the trie while it is asked: each set of nodes that some topic led to is one
state.

    trie    root --a--> 1 --*--> 2 [x]        states   {root} --a--> {1 3} --b--> {2 3 4}   answer: x y z
                        `---#--> 3 [y] --b--> 4 [z]                  {1 3} --other--> {2 3}   answer: x y

A ``#`` node is in a set from the moment its parent is, and stays. Where a topic was before, a
lookup is one probe a word; all words that no node of a state has a child for take the state's one
`other` step.

A change is O(words), as in the trie, and touches no state. It puts a stamp, the clock of changes,
on the one node that has another child or other subscribers now. A state carries the clock at which
it was last looked through; when a lookup comes upon one with an older clock, it looks through the
state's nodes and forgets the answer, or the steps, or the whole state, as their stamps say. Nothing
else is made again.

`#.a.*.*.*...` makes a state for every subset of its wildcards. So the DFA has a budget of octets,
and a lookup makes only so many states before it walks the trie as an NFA from the state where it
is. When the budget is gone every lookup does that where the DFA ends; nothing is thrown away to
make room, which would only be made again. Only after as many changes as there are states, when most
of them may be out of reach, it starts over, and frees the old ones some at a time.

From article 5, which drops the whole DFA at each new binding.
"""

from __future__ import annotations

from typing import Final, Generic, cast

from matching.bucket import take
from matching.grammar import Grammar
from matching.matcher import S
from matching.trie import Trie, TrieNode, advance

#: Nodes that one lookup looks through to make states, or to see whether they hold: 0.1 ms
#: uncompiled.
_EFFORT: Final = 256
#: A longer answer is collected each time, not kept: 20,000 subscribers of one filter would be in
#: many states.
_KEPT: Final = 64
#: Octets of a state without nodes, of a step, and of an answer without subscribers (of CPython
#: 3.11, estimated with sys.getsizeof).
_STATE: Final = 320
_STEP: Final = 100
_ANSWER: Final = 64
#: Old states freed whenever a new one is made.
_FREED: Final = 16


class _Stamped(TrieNode[S]):
    """A node of the trie that says when it changed."""

    __slots__ = ("number", "served", "stays", "turned")

    def __init__(self, depth: int, number: int, stays: bool, clock: int) -> None:
        super().__init__(depth)
        #: The order in which nodes were made; a set of nodes is always written down in it.
        self.number = number
        #: Whether a word may leave the walk here: it is a `#` node.
        self.stays = stays
        self.turned = clock
        self.served = clock


class _State(Generic[S]):
    """A set of nodes in which a topic may be.

    What it knows about them was so at the clock `looked`; -1: never again.
    """

    __slots__ = ("answer", "following", "looked", "nodes", "octets", "other", "steps", "word")

    def __init__(self, nodes: tuple[_Stamped[S], ...], clock: int) -> None:
        self.nodes = nodes
        self.looked = clock
        self.octets = _STATE + 8 * len(nodes)
        #: The first step made stands here, further ones in `steps`. Most states of topics that are
        #: many have one step, and to compare a word is less than to look it up.
        self.word = ""
        self.following: _State[S] | None = None
        self.steps: dict[str, _State[S]] = {}
        self.other: _State[S] | None = None
        self.answer: list[S] | None = None


class Dfa(Trie[S]):
    """Fastest where the same topics, or topics that begin alike, come again and again, and
    subscriptions seldom.
    """

    def __init__(self, grammar: Grammar, budget: int = 96 << 20) -> None:
        """The DFA takes at most about `budget` octets beside its trie."""
        self._budget: Final = budget
        self._clock = 0
        self._numbers = 0
        self._restart()
        super().__init__(grammar)

    def _restart(self) -> None:
        self._states: dict[tuple[_Stamped[S], ...], _State[S]] = {}
        self._old: dict[tuple[_Stamped[S], ...], _State[S]] = {}
        self._started = self._clock
        self._octets = 0
        self._effort = 0
        self._begin: _State[S] | None = None

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        if not super().unsubscribe(pattern, subscriber):
            return False
        if not self._pairs:
            self._restart()
        return True

    def match(self, topic: str) -> list[S]:
        """Hot path: follows steps that were made before.

        Whatever else there is to do, `_found` does it from the beginning.
        """
        state = self._begin
        clock = self._clock
        grammar = self.grammar
        if state is None or state.looked != clock or grammar.hides and grammar.hidden(topic):
            return self._found(topic)
        for word in topic.split(grammar.separator) if topic else grammar.split(topic):
            following = state.following if word == state.word else state.steps.get(word)
            if following is None or following.looked != clock:
                following = _other(state, word)
                if following is None:
                    return self._found(topic)
            state = following
        answer = state.answer
        return self._found(topic) if answer is None else answer.copy()

    def _found(self, topic: str) -> list[S]:
        """The same as `match`, making or mending states on the way, as far as effort and budget
        allow.
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
            start = [cast(_Stamped[S], child)]
            state = self._state(start)
        else:
            start = [cast(_Stamped[S], self._root)]
            state = self._begin
            if state is None or state.looked != clock:
                state = self._begin = self._state(start)
        if state is None:
            return self._walked(_closed(start), words, at)
        end = len(words)
        while at < end:
            word = words[at]
            following = state.following if word == state.word else state.steps.get(word)
            if following is None or following.looked != clock:
                following = self._step(state, word, following)
                if following is None:
                    return self._walked(list(state.nodes), words, at)
            state = following
            at += 1
        answer = state.answer
        return self._answer(state) if answer is None else answer.copy()

    def clear(self) -> None:
        super().clear()
        self._restart()

    def stats(self) -> dict[str, int]:
        """`states` and `octets` are those of the DFA, both with what is still to be freed."""
        return {
            **super().stats(),
            "states": len(self._states) + len(self._old),
            "octets": self._octets,
        }

    def _step(self, state: _State[S], word: str, known: _State[S] | None) -> _State[S] | None:
        """Where the word leads, `known` if that still holds; None if that would take too much."""
        if not self._looked(known, len(state.nodes)):
            return None
        if known is not None and known.looked == self._clock:
            return known
        literal = False
        for node in state.nodes:
            children = node.children
            if children is not None and word in children:
                literal = True
                break
        other = state.other
        if not literal and other is not None:
            if not self._looked(other, 0):
                return None
            if other.looked == self._clock:
                return other
        nodes: list[_Stamped[S]] = []
        for node in state.nodes:
            if node.stays:
                nodes.append(node)
            if node.one is not None:
                nodes.append(cast(_Stamped[S], node.one))
            children = node.children
            if literal and children is not None:
                child = children.get(word)
                if child is not None:
                    nodes.append(cast(_Stamped[S], child))
        following = self._state(nodes)
        if following is None:
            return None
        if not literal:
            state.other = following
        elif word in state.steps:
            state.steps[word] = following
        elif state.following is not None and word == state.word:
            state.following = following
        elif self._afford(_STEP, state):
            word = self._pool.get(word, word)  # the trie's own word: one for all states
            if state.following is None:
                state.word = word
                state.following = following
            else:
                state.steps[word] = following
        return following

    def _state(self, some: list[_Stamped[S]]) -> _State[S] | None:
        """The state of these nodes and the ``#`` nodes that come with them; None if that would take
        too much.
        """
        nodes = _closed(some)
        nodes.sort(key=_number)
        key = tuple(nodes)
        state = self._states.get(key)
        if not self._looked(state, len(nodes)):
            return None
        if state is not None and state.looked == self._clock:
            return state
        self._free()
        state = _State(key, self._clock)
        if self._octets + state.octets > self._budget:
            if not self._old and self._clock - self._started > len(self._states):
                self._old = self._states
                self._states = {}
                self._started = self._clock
                self._begin = None
            return None
        self._octets += state.octets
        self._states[key] = state
        return state

    def _looked(self, state: _State[S] | None, nodes: int) -> bool:
        """Bring a state up to date, or discard it; False if, with so many other nodes, that would
        take too long.
        """
        if state is None or state.looked == self._clock or state.looked < 0:
            self._effort -= nodes + 1
            return self._effort >= 0
        self._effort -= nodes + len(state.nodes) + 1
        if self._effort < 0:
            return False
        turned = False
        served = False
        for node in state.nodes:
            turned = turned or node.turned > state.looked
            served = served or node.served > state.looked
        if turned and _closed(list(state.nodes)) != list(state.nodes):
            self._discard(state)
            return True
        if turned or served:
            octets = 0 if state.answer is None else _ANSWER + 8 * len(state.answer)
            state.answer = None
            if turned:
                octets += _STEP * (len(state.steps) + (state.following is not None))
                _bereft(state)
            state.octets -= octets
            self._octets -= octets
        state.looked = self._clock
        return True

    def _answer(self, state: _State[S]) -> list[S]:
        """The subscribers of the state's nodes, kept for the next time if they are few."""
        found: list[S] = []
        for node in state.nodes:
            take(node.bucket, found)
        if self._tally.shared:
            found = self._tally.distinct(found)
        if len(found) <= _KEPT and self._afford(_ANSWER + 8 * len(found), state):
            state.answer = found.copy()
        return found

    def _walked(self, nodes: list[_Stamped[S]], words: list[str], at: int) -> list[S]:
        """The subscribers found by walking the trie as an NFA from these nodes on."""
        found: list[S] = []
        stays: list[TrieNode[S]] = []
        moving: list[TrieNode[S]] = []
        entered: set[TrieNode[S]] = set()
        for node in nodes:
            if not node.stays:
                moving.append(node)
            else:
                entered.add(node)
                take(node.bucket, found)
                if node.children is not None or node.one is not None:
                    stays.append(node)
        advance(stays, moving, entered, words, at, found)
        return self._tally.distinct(found) if self._tally.shared else found

    def _afford(self, octets: int, state: _State[S]) -> bool:
        """Whether the budget has room for so much more in a state; then it is the state's."""
        if self._octets + octets > self._budget:
            return False
        self._octets += octets
        state.octets += octets
        return True

    def _discard(self, state: _State[S]) -> None:
        """Forget a state. Others may still lead to it, and will see that it is gone."""
        self._octets -= state.octets
        state.looked = -1
        _bereft(state)
        state.answer = None
        self._states.pop(state.nodes, None)

    def _free(self) -> None:
        """Free some of the states from before the last start."""
        for _ in range(min(_FREED, len(self._old))):
            self._discard(self._old.popitem()[1])

    def _fresh(self, depth: int, many: bool) -> TrieNode[S]:
        self._numbers += 1
        return _Stamped(depth, self._numbers, many, self._clock)

    def _turned(self, node: TrieNode[S]) -> None:
        self._clock += 1
        cast(_Stamped[S], node).turned = self._clock

    def _served(self, node: TrieNode[S]) -> None:
        self._clock += 1
        cast(_Stamped[S], node).served = self._clock


def _bereft(state: _State[S]) -> None:
    """Forget where the words lead."""
    state.word = ""
    state.following = None
    state.steps = {}
    state.other = None


def _other(state: _State[S], word: str) -> _State[S] | None:
    """Where a word leads that no node of the state has a child for; None if one has, or where that
    is not known now.
    """
    other = state.other
    if other is None or other.looked != state.looked:
        return None
    for node in state.nodes:
        children = node.children
        if children is not None and word in children:
            return None
    return other


def _closed(nodes: list[_Stamped[S]]) -> list[_Stamped[S]]:
    """These nodes without those that were cut off, and with the ``#`` nodes that come with them."""
    there = [node for node in nodes if not _bare(node)]
    known = set(there)
    for node in there:
        if node.many is not None and node.many not in known:
            many = cast(_Stamped[S], node.many)
            known.add(many)
            there.append(many)
    return there


def _bare(node: _Stamped[S]) -> bool:
    """Whether nothing is at the node and behind it: it was cut off, or is the root of an empty
    trie.
    """
    return node.bucket is None and node.children is None and node.one is None and node.many is None


def _number(node: _Stamped[S]) -> int:
    return node.number
