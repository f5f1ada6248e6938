"""Simulates a cluster with the nodes, faults and clients of one seed, and checks its guarantees."""

from __future__ import annotations

from collections import Counter
from itertools import count

from broker.replication.contract import Fenced, ReceivedBatch, Timing
from broker.replication.errors import ReplicationError
from broker.replication.owner import LogOwner
from tests.replication.simulation.node import Node, needs_seed
from tests.replication.simulation.world import World

#: The kinds of violations of a guarantee.
LOST = "a confirmed message is neither delivered nor in a queue"
ORDER = "messages are delivered out of order"
BACK = "a message is delivered although its settlement was durable"
OVERLAP = "an old owner acted after its successor's first act"
DIVERGED = "a node cannot go on"
DIFFERENT = "two data directories differ"
WARM = "the warm survivors of a node differ from a scan of its log"
STUCK = "no node owns the log although all run"
BEHIND = "a node does not follow the log although all run"
NEEDLESS = "an owner was replaced although only the log stood still"
TRIMMED = "the log was trimmed behind a node that is listed"
UNMARKED = "the log begins at a record that is no mark"

#: Silence, lease and beat of the simulated nodes, in seconds; shorter than the defaults.
TIMING = Timing(1.0, 0.7, 0.15)
#: Seconds of a simulation during which faults occur.
FAULTY_SECONDS = 16.0
#: Seconds without faults at the end: longer than a pause, a restart and the seeding of a node take.
HEALTHY_SECONDS = 12.0
#: Seconds for which a disk is full; the second line is for simulations of full disks.
FULL_SECONDS = (0.3, 1.0, 2.5)
LONG_FULL_SECONDS = (0.7, 1.3, 2.5, 6.0)
#: Largest number of batches by which a node may be behind the owner at the end.
LAG_MAX = 20


class Cluster:
    """A simulated cluster of three nodes.

    With `only_log_faults`, the log has faults and the nodes have none. With `switches`, an
    operator repeatedly orders the owner to hand the log over to a standby. With `full_disks`, half
    of the faults are full disks, most of them on the owner, which then hands the log over.
    """

    def __init__(
        self,
        seed: int,
        node_type: type[Node] = Node,
        only_log_faults: bool = False,
        switches: bool = False,
        full_disks: bool = False,
    ) -> None:
        self.switches = switches
        self._full_disks = full_disks
        #: Number of times that an owner handed the log over.
        self.handovers = 0
        self._handover_nonces = count(1 << 61)
        self.world = World(seed, TIMING, 0.0 if only_log_faults else 0.004)
        self.nodes = [node_type(self.world, f"node {number}", self) for number in range(3)]
        #: The nodes whose unread records must stay in the log.
        self.listed = list(self.nodes)
        self.complaints: Counter[str] = Counter()
        self.takeovers = 0
        self.acts = 0
        self._only_log_faults = only_log_faults
        self._healthy = False
        self._identity = 0
        #: Identities of the messages that the broker has confirmed.
        self._confirmed: set[int] = set()
        self._delivered: set[int] = set()
        #: Identities of the messages whose settlement is durable.
        self._settled: set[int] = set()
        self._identity_at: dict[int, int] = {}
        #: Identity of the last delivered message, by epoch and connection.
        self._last_delivered: dict[tuple[int, int], int] = {}
        self._first_act: dict[int, float] = {}
        self._last_act: dict[int, float] = {}

    # -- what nodes report

    def owned(self, node: Node, epoch: int) -> None:
        """Count a takeover, and check the survivors (live records) of the new owner.

        If only the log has faults, each takeover after the first claim is a violation.
        """
        self.takeovers += 1
        self.check_survivors(node)
        if self._only_log_faults and epoch > 1:
            self.complain(NEEDLESS)

    def handed_over(self) -> None:
        """Count a handover: the owner has appended a claim in the name of its successor."""
        self.handovers += 1

    def new_handover_nonce(self) -> int:
        """Return a new number, which identifies one process of a node in a handover."""
        return next(self._handover_nonces)

    def successors(self, owner: LogOwner) -> tuple[int, ...]:
        """Return the `handover_nonce` of each standby that can take the log over from the owner.

        Such a standby runs, its disk is not full, and it has all batches of the owner.
        """
        return tuple(
            node.standby.handover_nonce
            for node in self.nodes
            if node.running
            and node.owner is None
            and node.standby is not None
            and node.full_until <= self.world.now
            and node.standby.state.number >= owner.judge.state.number
        )

    def shipped(self, owner: LogOwner, batch: ReceivedBatch) -> None:
        """Do nothing after an owner has appended a batch, and before it confirms the messages.

        Subclasses check the batch here.
        """

    def acted(self, epoch: int) -> None:
        """Record that the owner of this epoch acts now.

        If an owner of a later epoch has acted already, this act is a violation.
        """
        self.acts += 1
        now = self.world.now
        self._first_act.setdefault(epoch, now)
        self._last_act[epoch] = now
        if any(later > epoch for later in self._first_act):
            self.complain(OVERLAP)

    def confirmed(self, identity: int) -> None:
        """Record that a publisher got its confirm."""
        self._confirmed.add(identity)

    def settled_durably(self, positions: list[int], node: Node) -> None:
        """Record that the messages at these positions are settled durably."""
        self._settled |= {self._identity_at[position] for position in positions}

    def delivered(self, node: Node, position: int, identity: int) -> None:
        """Record a delivery, and send the consumer's acknowledgement."""
        assert node.owner is not None
        self._identity_at[position] = identity
        self._delivered.add(identity)
        if identity in self._settled:
            self.complain(BACK)
        connection = node.owner.epoch, node.connections
        if identity < self._last_delivered.get(connection, 0):
            self.complain(ORDER)
        self._last_delivered[connection] = identity
        life, connections = node.life, node.connections
        delay = self.world.delay() + self.world.choice((0.0, 0.3))

        def acknowledge() -> None:
            if node.connections == connections:
                node.acknowledge(position)

        def answer() -> None:
            if node.life == life:
                node.local(0.0, acknowledge)

        self.world.after(delay, answer)

    def trimmed(self, offset: int) -> None:
        """Check that the trimmed log begins with a mark: a record with the state of the log."""
        if not any(node.owner is not None and offset in node.owner.marks for node in self.nodes):
            self.complain(UNMARKED)

    def ended(self, node: Node, error: Exception) -> None:
        """Restart a node that has ended.

        If the log no longer has the records that the node lacks, seed the node first.
        """
        if needs_seed(error):
            if not node.is_struck:
                self.complain(TRIMMED)
            self.world.after(0.2, lambda: self._seed(node))
            return
        if not isinstance(error, Fenced):
            self.complain(DIVERGED)
            if not isinstance(error, ReplicationError):
                raise error
        self.world.after(self.world.random.uniform(0.2, 2), lambda: self._restart(node))

    def check_survivors(self, node: Node) -> None:
        """Compare the live records that a node knows (its survivors) with a scan of its log.

        A difference is a violation.
        """
        for line in node.directory.warm_differences():
            self.world.say(f"{node.name}: {line}")
            self.complain(WARM)

    def complain(self, text: str) -> None:
        """Count a violation of a guarantee, and add it to the log of events."""
        self.complaints[text] += 1
        self.world.say(f"COMPLAINT: {text}")

    # -- faults and clients

    def _restart(self, node: Node) -> None:
        if not node.running:
            self.world.say(f"{node.name} starts")
            if node not in self.listed:
                self.listed.append(node)
                node.is_struck = node.directory.restart_offset < self.world.log.low
            node.start()

    def _seed(self, node: Node) -> None:
        """Seed a node: copy the directory of another node, the catalog first, the log later."""
        sources = self.sources(node)
        if not sources:
            self.world.after(0.5, lambda: self._seed(node))
            return
        source = self.world.random.choice(sources)
        node.synced = source.directory.restart_offset
        if node not in self.listed:
            self.listed.append(node)
        catalog, before = source.directory.copy_catalog(), source.directory.checkpoints

        def finish() -> None:
            torn = source.directory.checkpoints != before and not source.directory.copied_any_time
            if torn or not source.running:
                self._seed(node)
                return
            node.is_struck = False
            node.directory.seed(catalog, source.directory.copy_log())
            self.world.say(f"{node.name} is seeded from {source.name}")
            self._restart(node)

        self.world.after(self.world.random.uniform(0.01, 0.2), finish)

    def sources(self, node: Node) -> list[Node]:
        """Return the nodes from which an operator may seed a node."""
        return [other for other in self.nodes if other is not node and other.running]

    def _crash(self, node: Node) -> None:
        if not node.running:
            return
        self.world.say(f"{node.name} crashes")
        self.crash(node)

    def crash(self, node: Node) -> None:
        """Crash a node, and start it again later.

        In between, an operator may remove the node from the list of nodes whose unread records
        stay in the log.
        """
        node.crash()
        if self.world.random.random() < 0.2 and len(self.listed) == len(self.nodes):
            node.is_struck = True
            self.listed.remove(node)
            self.world.after(self.world.random.uniform(2, 5), lambda: self._restart(node))
        else:
            self.world.after(self.world.random.uniform(0.1, 3), lambda: self._restart(node))

    def _fault(self) -> None:
        """Cause one fault, and schedule the next one."""
        if self._healthy:
            return
        world, chance = self.world, self.world.random
        node = chance.choice(self.nodes)
        kind = (
            "log"
            if self._only_log_faults
            else chance.choice(
                (
                    "pause",
                    "pause",
                    "pause",
                    "crash",
                    "crash",
                    "log",
                    "cut",
                    "cut",
                    "full",
                    "checkpoint",
                )
            )
        )
        full: tuple[float, ...] = FULL_SECONDS
        if self._full_disks and chance.random() < 0.5:
            kind, full = "full", LONG_FULL_SECONDS
            owners = [one for one in self.nodes if one.is_open]
            node = chance.choice(owners) if owners and chance.random() < 0.8 else node
        if kind == "pause":
            node.paused_until = world.now + chance.choice((0.3, 0.8, 1.1, 1.5, 3.0, 6.0))
            world.say(f"{node.name} is paused until {node.paused_until:.3f}")
        elif kind == "crash":
            self._crash(node)
        elif kind == "log":
            world.log_down_until = world.now + chance.choice((0.2, 0.6, 1.5, 3.0))
            world.say(f"the log stands still until {world.log_down_until:.3f}")
        elif kind == "cut":
            node.cut_until = world.now + chance.choice((0.3, 0.8, 1.5, 3.0, 6.0))
            world.say(f"{node.name} is cut from the log until {node.cut_until:.3f}")
        elif kind == "full":
            node.full_until = world.now + chance.choice(full)
            world.say(f"the disk of {node.name} is full until {node.full_until:.3f}")
        # The next fault comes after the outage: a log that stops for longer than a writer waits
        # would end the owner.
        outage = max(0.0, world.log_down_until - world.now)
        world.after(outage + chance.uniform(0.3, 3.0), self._fault)

    def _switch(self) -> None:
        """Tell an owner to hand the log over to a standby, and schedule the next handover."""
        chance = self.world.random
        owners = [node for node in self.nodes if node.is_open and not node.successor]
        standbys = [node for node in self.nodes if node.running and node.owner is None]
        if owners and standbys:
            owner, standby = chance.choice(owners), chance.choice(standbys)
            assert standby.standby is not None
            nonce = standby.standby.handover_nonce
            self.world.say(f"{owner.name} shall hand over to {standby.name}")
            # The owner learns the number of the standby with a delay, so the standby may have
            # restarted by then.
            life, delay = owner.life, chance.choice((0.001, 0.5, 2.0))

            def begin() -> None:
                if owner.life == life:
                    owner.successor = nonce

            self.world.after(delay, begin)
        if not self._healthy:
            self.world.after(chance.uniform(0.5, 4.0), self._switch)

    def _checkpoints(self) -> None:
        """Start a checkpoint on each node that permits one now, and repeat at random intervals."""
        for node in self.nodes:
            if node.running and node.directory.may_checkpoint():
                node.local(0.0, node.checkpoint)
        self.world.after(self.world.random.uniform(0.2, 1.0), self._checkpoints)

    def _publish(self) -> None:
        """Let the publisher send a message to a node that serves clients, again and again."""
        if self.world.now < FAULTY_SECONDS + HEALTHY_SECONDS / 2:
            serving = [node for node in self.nodes if node.is_open]
            if serving:
                self._identity += 1
                node, identity = self.world.random.choice(serving), self._identity
                life = node.life

                def arrive() -> None:
                    if node.life == life:
                        node.local(0.0, lambda: node.publish(identity))

                self.world.after(0.001, arrive)
            # In a pause of the publisher, the owner appends only beats.
            idle = self.world.random.uniform(1, 4) if self.world.random.random() < 0.01 else 0.0
            self.world.after(idle + self.world.choice((0.005, 0.02, 0.05)), self._publish)

    # -- the whole history

    def run(self) -> Counter[str]:
        """Run the simulation, and return the violations."""
        for node in self.nodes:
            self.world.after(self.world.random.random() * 0.2, node.start)
        self.world.after(3.0, self._fault)
        self.world.after(0.5, self._checkpoints)
        self.world.after(0.5, self._publish)
        if self.switches:
            self.world.after(1.0, self._switch)
        self.world.run(FAULTY_SECONDS)
        self._healthy = True
        self.world.faulty = self.world.fail_points = 0.0
        self.world.run(FAULTY_SECONDS + HEALTHY_SECONDS)
        self._check_end()
        return self.complaints

    def _check_end(self) -> None:
        owners = [node for node in self.nodes if node.is_open and node.may_act()]
        if len(owners) != 1:
            self.complain(STUCK)
            return
        owner = owners[0]
        if self._confirmed - self._delivered - set(owner.live.values()):
            self.complain(LOST)
        for node in self.nodes:
            if node.directory.state.number == owner.directory.state.number and (
                node.directory.live() != owner.directory.live()
                or node.directory.queues != owner.directory.queues
                or node.directory.salt != owner.directory.salt
            ):
                self.complain(DIFFERENT)
            if node.directory.state.number == owner.directory.state.number and node.running:
                self.check_survivors(node)
            if node.directory.state.number < owner.directory.state.number - LAG_MAX:
                self.complain(BEHIND)
