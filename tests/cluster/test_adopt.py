"""Tests of `trellis cluster adopt`, which begins a log with an existing data directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from broker.replication.adoption import (
    EPOCHS_SKIPPED,
    AdoptedDirectory,
    DirectorySurvey,
    leave_cluster,
    survey_directory,
)
from broker.replication.contract import LogReplaced, Timing
from broker.replication.description import NodeDescription
from broker.replication.errors import ReplicationError
from broker.replication.judge import LogGap
from broker.replication.owner import LogOwner
from broker.replication.records import (
    BEAT,
    CLAIM,
    Claim,
    ClusterState,
    LogRecord,
    decode,
)
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from broker.store.disk import RealDisk, StoreError
from tests.cluster.test_following import PATIENT, Owner, Standby, stored
from tests.cluster.test_following import QUEUE as DECLARED
from tests.replication.threaded_log import ThreadedLog
from tests.store.homes import Home
from trellis.cluster.adopting import Adoption
from trellis.cluster.status import LOST_SECONDS
from trellis.server.recovery import codecs, open_directory
from trellis.settings.schema import StoreSettings

NOW = 1_700_000_000_000
QUEUE = "work"
SALT = 5


@dataclass
class Adopting:
    """An adoption of the data directory `path`, whose data become the beginning of `log`.

    The clock of the adoption stands still.
    """

    log: ThreadedLog
    path: Path
    name: str = "broker"
    #: Called while the adoption watches the log.
    meanwhile: Callable[[], object] = bool

    def __post_init__(self) -> None:
        self.adoption = Adoption(
            self.log, self.name, "node", Timing(), lambda seconds: self._wait(), lambda: NOW
        )

    def _wait(self) -> None:
        self.meanwhile()

    def survey(self) -> DirectorySurvey:
        return survey_directory(RealDisk(), str(self.path))

    def run(self, over_records: bool = False, behind: bool = False) -> int:
        """Adopt the directory, and return the epoch with which the log begins.

        `over_records` permits a log that has records, `behind` a directory that is behind the log.
        """
        survey = self.survey()
        log_survey = self.adoption.examine(survey, over_records, behind)
        self.lines = list(self.adoption.consequences(survey, log_survey))
        directory = AdoptedDirectory(RealDisk(), str(self.path), codecs(), SALT, pytest.fail)
        try:
            return self.adoption.carry_out(survey, directory, log_survey)
        finally:
            directory.close()


@pytest.fixture
def log() -> ThreadedLog:
    return ThreadedLog()


def plain_directory(path: Path, messages: int = 3) -> Path:
    """Return the directory of a broker without a cluster, with a queue, a stream and messages."""
    home = Home(path)
    client = home.amqp()
    client.queue(QUEUE, durable=True)
    client.queue("rows", durable=True, x_queue_type="stream")
    for number in range(messages):
        for queue in (QUEUE, "rows"):
            client.publish("", queue, b"%d" % number, delivery_mode=2)
    home.turn()
    home.crash()
    return path


def replica_directory(path: Path, log: ThreadedLog) -> Path:
    """Return the directory of a node that has followed a log with two messages."""
    owner = Owner(log)
    owner.write(DECLARED, stored(b"one"))
    owner.write(stored(b"two"))
    standby = Standby(path, log, RealDisk())
    assert isinstance(standby.join(), LogOwner)
    return path


def takes_over(path: Path, log: ThreadedLog) -> list[bytes]:
    """Start a node on a directory, and wait until it is the owner; return its messages' bodies."""
    standby = Standby(path, log, RealDisk())
    owner = standby.join()
    assert isinstance(owner, LogOwner), owner
    # An AMQP content ends with the body and the byte 0xCE.
    return [content.removesuffix(b"\xce") for content in standby.contents()]


def bodies(contents: list[bytes]) -> list[bytes]:
    """Return the bodies of message contents: the last byte of each content."""
    return [content[-1:] for content in contents]


def seeded(path: Path, target: Path) -> Path:
    """Copy a data directory to `target`, and return `target`."""
    shutil.copytree(path, target)
    return target


def test_directory_of_a_broker_without_a_cluster_begins_a_log(
    log: ThreadedLog, tmp_path: Path
) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first"))
    before = Standby(tmp_path / "before", log, timing=PATIENT)
    before.stop()
    assert adopting.run() == EPOCHS_SKIPPED
    assert "of a broker without a cluster: 3 definitions" in adopting.lines[0]
    copy = seeded(adopting.path, tmp_path / "second")
    [(offset, data)] = log.read(0).records
    claim = decode(data)
    assert isinstance(claim, Claim) and (offset, claim.epoch) == (0, EPOCHS_SKIPPED)
    assert claim.state.position == adopting.survey().position
    assert bodies(takes_over(adopting.path, log)) == [b"0", b"1", b"2"]
    # The copy follows the log from the same claim, and takes over from the first node.
    assert bodies(takes_over(copy, log)) == [b"0", b"1", b"2"]


def test_node_without_the_adopted_directory_stops_and_asks_to_be_seeded(
    log: ThreadedLog, tmp_path: Path
) -> None:
    lost = ThreadedLog()
    first = replica_directory(tmp_path / "first", lost)
    other = seeded(first, tmp_path / "other")
    adopting = Adopting(log, first)
    assert adopting.run() == EPOCHS_SKIPPED + 2
    assert takes_over(first, log) == [b"one", b"two"]
    while log.records.tip <= 10:
        log.append(LogRecord(BEAT, EPOCHS_SKIPPED + 3, 1, 0).encode())
    for path, error in ((other, LogReplaced), (tmp_path / "empty", LogGap)):
        end = Standby(path, log, RealDisk()).join()
        assert isinstance(end, error), end
        assert "`trellis cluster seed`" in str(end)


def test_interrupted_adoption_goes_on(
    log: ThreadedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first"))
    with monkeypatch.context() as patch:
        patch.setattr(AdoptedDirectory, "store", lambda self, state: pytest.skip.Exception)
        adopting.run()
    assert adopting.survey().state.name == ""
    assert adopting.run() == EPOCHS_SKIPPED
    assert log.records.tip == 1
    assert bodies(takes_over(adopting.path, log)) == [b"0", b"1", b"2"]
    with pytest.raises(ReplicationError, match="start the node with `trellis serve`"):
        adopting.run()


def test_log_with_records_is_discarded_only_on_request(log: ThreadedLog, tmp_path: Path) -> None:
    first = replica_directory(tmp_path / "first", log)
    adopting = Adopting(log, first)
    tip = log.records.tip
    with pytest.raises(ReplicationError, match=rf"the log has {tip} records .* --over-records"):
        adopting.run()
    assert adopting.run(over_records=True) == EPOCHS_SKIPPED + 2
    assert f"{tip} records of the log are discarded" in adopting.lines
    assert takes_over(first, log) == [b"one", b"two"]
    for path in (tmp_path / "empty", tmp_path / "behind"):
        assert isinstance(Standby(path, log).join(), LogGap)


def test_directory_behind_another_node_is_adopted_only_on_request(
    log: ThreadedLog, tmp_path: Path
) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first"))
    position = adopting.survey().position
    log.reported["far"] = NodeReport(9, position=position + 1, batch=4, wall=NOW - 60_000)
    log.reported["near"] = NodeReport(9, position=position, wall=NOW - 60_000)
    with pytest.raises(ReplicationError) as refused:
        adopting.run()
    assert str(refused.value) == (
        f"node 'far' has reported position {position + 1}, and the data directory "
        f"'{adopting.path}' has only position {position}: adopt the directory of node 'far', or "
        "give up its later changes with --behind"
    )
    assert adopting.run(behind=True) == EPOCHS_SKIPPED
    assert f"node 'far' has reported position {position + 1} (batch 4), 60 s ago" in adopting.lines


def beat(log: ThreadedLog) -> object:
    return log.append(LogRecord(BEAT, 1, 1, 0).encode())


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            lambda log: log.reported.update(
                other=NodeReport(0, state="active", wall=NOW - int(LOST_SECONDS * 1000))
            ),
            r"node 'other' is active and reported 12 s ago: stop all nodes",
        ),
        (lambda log: log.append(b"x" * 60), "the record at offset 0 is not a record of this"),
        (
            lambda log: log.append(
                Claim(CLAIM, 1, 1, 0, -1, ClusterState("other"), bytes(32)).encode()
            ),
            "the log belongs to the broker 'other', and this node is a node of 'broker': set",
        ),
    ],
)
def test_adoption_is_refused(
    log: ThreadedLog, tmp_path: Path, spoil: Callable[[ThreadedLog], object], text: str
) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first"))
    spoil(log)
    with pytest.raises(ReplicationError, match=text):
        adopting.run(over_records=True, behind=True)
    assert adopting.survey().state.name == ""


def test_log_that_grows_is_not_adopted(log: ThreadedLog, tmp_path: Path) -> None:
    path = plain_directory(tmp_path / "first")
    adopting = Adopting(log, path, meanwhile=lambda: beat(log))
    with pytest.raises(ReplicationError, match=r"1 records were appended to the log within 3\.5 s"):
        adopting.run(over_records=True, behind=True)


def test_record_between_the_survey_and_the_claim_stops_the_adoption(
    log: ThreadedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first"))
    monkeypatch.setattr(
        adopting.adoption, "consequences", lambda survey, log_survey: [str(beat(log))], raising=True
    )
    with pytest.raises(ReplicationError, match=r"has appended records 0 to 0 .* is unchanged"):
        adopting.run()
    assert adopting.survey().state.name == ""


def test_directory_of_another_broker_and_an_empty_one_are_refused(
    log: ThreadedLog, tmp_path: Path
) -> None:
    first = replica_directory(tmp_path / "first", ThreadedLog())
    with pytest.raises(ReplicationError, match=r"belongs to the broker 'broker', and this node is"):
        Adopting(log, first, "orders").run()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReplicationError, match="is empty, so there is nothing to adopt"):
        Adopting(log, tmp_path / "empty").run()


def test_damaged_directory_is_refused_and_not_changed(log: ThreadedLog, tmp_path: Path) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first", 50))
    [segment] = (adopting.path / "log").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 255
    segment.write_bytes(data)
    with pytest.raises(ReplicationError, match="is damaged, and a cluster cannot begin with it"):
        adopting.run()
    assert segment.read_bytes() == data
    assert log.records.tip == 0


def test_list_of_nodes_of_an_earlier_log_is_empty() -> None:
    nodes = NodeList(frozenset({"a", "b"}), {"c": 3}, 7, "old")
    assert NodeList.from_value(nodes.value()).of_log("old") == nodes
    assert nodes.of_log("new") == NodeList(log="new")
    assert replace(nodes, log="").of_log("new") == replace(nodes, log="new")


def test_directory_that_leaves_its_cluster_is_that_of_a_broker_without_one(
    log: ThreadedLog, tmp_path: Path
) -> None:
    first = replica_directory(tmp_path / "first", log)
    with pytest.raises(
        StoreError, match="if the cluster no longer exists, with `trellis serve --adopt"
    ):
        open_directory(RealDisk(), first, StoreSettings())
    assert leave_cluster(RealDisk(), str(first)).name == "broker"
    assert leave_cluster(RealDisk(), str(first)).name == ""
    open_directory(RealDisk(), first, StoreSettings()).store.close()
    with pytest.raises(ReplicationError, match="begin a new cluster with it"):
        Standby(first, log, RealDisk())
    assert Adopting(ThreadedLog(), first).run() == EPOCHS_SKIPPED


def test_description_of_the_adopted_directory_names_the_log(
    log: ThreadedLog, tmp_path: Path
) -> None:
    adopting = Adopting(log, plain_directory(tmp_path / "first"))
    adopting.run()
    owner = NodeDescription.decode(adopting.survey().state.owner)
    assert (owner.node, owner.log) == ("node", log.identity)
