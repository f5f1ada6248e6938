"""Definitions over HTTP: export and import definitions of the broker or of one virtual host."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from broker.definitions import exporting, rabbitmq
from broker.definitions.trial import TrialImport
from trellis.auth.passwords import check_hash, show_hash
from trellis.http.management.answers import Call, Row, SectionedRows, SectionRow, bad_request
from trellis.server import definitions_files

#: Largest number of refused definitions, and of notes, in an answer.
REFUSED_MAX = 10_000


async def export(call: Call) -> SectionedRows:
    """Return all definitions of the broker as a JSON document."""
    rows = exporting.export_rows(call.broker, show_hash)
    return SectionedRows(dict(definitions_files.HEAD), rabbitmq.SECTIONS, rows)


async def import_(call: Call) -> Row:
    """Import definitions; return how many were imported, by kind, and which were refused.

    RabbitMQ stops at the first refused definition; Trellis imports all other definitions. `notes`
    names the parts of imported objects that Trellis lacks or handles in another way than RabbitMQ.
    With `dry_run=true` in the query, nothing is imported, and the answer has two further fields:
    `changes`, at most CHANGES_MAX existing objects that the import would change, and
    `more_changes`, the number of further such objects.
    """
    answer = await _import(call, None)
    call.node.review()
    return answer


async def export_vhost(call: Call) -> SectionedRows:
    """Return the definitions of the virtual host that the path names."""
    vhost = call.vhost(call.path_parameters[0])

    def rows() -> Iterator[SectionRow | None]:
        for section, row in exporting.export_rows(call.broker, show_hash):
            if section in definitions_files.VHOST_SECTIONS and row["vhost"] == vhost.name:
                yield section, {key: value for key, value in row.items() if key != "vhost"}
            else:
                yield None

    return SectionedRows(dict(definitions_files.HEAD), definitions_files.VHOST_SECTIONS, rows())


async def import_vhost(call: Call) -> Row:
    """Import definitions into the virtual host that the path names."""
    return await _import(call, call.vhost(call.path_parameters[0]).name)


async def _import(call: Call, vhost: str | None) -> Row:
    """Import the rows of the document in slices, into one virtual host if `vhost` names it.

    Return the report once all imported objects are durable.
    """
    if call.request.rows is None:
        raise bad_request("the body of the request is missing: send a definitions document")
    run: rabbitmq.Import | TrialImport = (
        TrialImport(check_hash, call.broker)
        if call.flag("dry_run")
        else rabbitmq.Import(call.broker, check_hash)
    )
    sections = rabbitmq.SECTIONS if vhost is None else definitions_files.VHOST_SECTIONS
    report = run.report
    dropped = {"refused": 0, "notes": 0}
    left_out: set[str] = set()
    async for section, fault, rows in call.request.rows:
        # A document may hold millions of objects that are refused.
        for name, lines in (("refused", report.refused), ("notes", report.notes)):
            dropped[name] += max(0, len(lines) - REFUSED_MAX)
            del lines[REFUSED_MAX:]
        if fault and section in sections:
            report.refused.append(f"{section}: {fault}")
        if section not in sections:
            left_out.add(section)
            continue
        async with call.slice() as work:
            call.node.turn.schedule()
            for row_json in rows:
                try:
                    row = msgspec.json.decode(row_json)
                except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                    report.refused.append(f"{section}: an object is not JSON: {error}")
                    continue
                if vhost is not None and isinstance(row, dict):
                    row["vhost"] = vhost
                with call.acting():
                    run.take(section, row)
                if section == "users":
                    report.notes += _overruled(call, row)
                if work.over:
                    await work.pause()
                    call.node.turn.schedule()
    await call.make_durable(call.broker.store.wait_for_all)
    report.notes += [
        f"{section}: left out, because the definitions of one virtual host have only "
        f"{', '.join(sections)}; POST /api/definitions imports all sections"
        for section in rabbitmq.SECTIONS
        if section in left_out
    ]
    for name, lines in (("refused", report.refused), ("notes", report.notes)):
        more = dropped[name] + max(0, len(lines) - REFUSED_MAX)
        if more:
            lines[REFUSED_MAX:] = [f"and {more} more"]
    answer: Row = {"taken": report.imported, "refused": report.refused, "notes": report.notes}
    if isinstance(run, TrialImport):
        answer["changes"] = [
            {"section": change.section, "name": change.name, "text": change.text}
            for change in run.changes.values()
        ]
        answer["more_changes"] = run.more_changes
    return answer


def _overruled(call: Call, row: object) -> list[str]:
    """Return a note about an imported user that the settings define; [] for any other row.

    This user has the password and the tags of the settings. The imported values have no effect.
    """
    if not isinstance(row, dict) or not (row.get("password_hash") or row.get("tags")):
        return []
    name = row.get("name")
    if not isinstance(name, str) or name not in call.node.accounts.settings_accounts:
        return []
    return [f"users {name!r}: the settings, not the import, give the password and the tags"]
