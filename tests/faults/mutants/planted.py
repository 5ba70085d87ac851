"""The defects: each a change of a few words to the product that breaks one promise, and the tests that must notice.

Owns the list, as data. Must not know how a defect is planted or a test is run. `old` occurs once in its file. A test is
named by its function, wherever that is, with the parameters to run it with where it has some; a name that several files
have is given with its file. What many tests would notice is shown on the quickest.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]


class Mutant(NamedTuple):
    """One defect."""

    name: str
    breaks: str
    """The promise that does not hold any more, in words."""
    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]

    @property
    def tests(self) -> list[str]:
        """As pytest names them."""
        return [place_of(test) for test in self.noticed_by]


def place_of(test: str) -> str:
    """Where a test is; LookupError unless exactly one file has it."""
    file, _, name = test.rpartition("::")
    files = [each for each in _tests().get(name.partition("[")[0], []) if file in ("", each)]
    if len(files) != 1:
        raise LookupError(f"{test} is in {len(files)} files: {files}")
    return f"{files[0]}::{name}"


@cache
def _tests() -> dict[str, list[str]]:
    """The files that have a test, by its name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


# --- an answer means what it says ------------------------------------------------------------------------------------

ANSWERS = (
    Mutant(
        "acknowledged_before_commit",
        "a write is acknowledged when it was handed to the engine, not when it is safe there",
        "statesvc/store/batches.py",
        "            results = await self._committed(batch)\n        except StateError as failure:",
        "            self._later = asyncio.ensure_future(self._committed(batch))\n"
        '            results: list[Result] = ["applied"] * len(batch.units)\n'
        "        except StateError as failure:",
        ("test_a_failed_sync_of_the_log_is_unknown_ends_the_daemon_and_is_never_tried_again[log-sync-early]",),
    ),
    Mutant(
        "reply_before_settled",
        "replies leave as soon as they are decided, whether or not their commit came about",
        "statesvc/connection.py",
        "if answer is None or ((batch := answer.after) is not None and not batch.settled):",
        "batch = None if answer is None else answer.after\n                if answer is None:",
        ("test_a_failed_sync_of_the_log_is_unknown_ends_the_daemon_and_is_never_tried_again[log-sync-early]",),
    ),
    Mutant(
        "failed_commit_forgets_who_built_on_it",
        "writes decided on a commit that failed are committed all the same",
        "statesvc/store/batches.py",
        "        follower, self._filling = self._filling, Batch()\n        self._wake.clear()\n",
        "        follower = Batch()\n",
        ("test_writes_decided_on_a_commit_that_found_no_space_fail_with_it_and_are_taken_when_they_come_again",),
    ),
    Mutant(
        "order_lost_behind_a_failure",
        "writes behind one that failed are taken before it comes again",
        "statesvc/answers.py",
        "if self.stopped_at is not None and (request.seq is None or request.seq > self.stopped_at):",
        "if False:",
        ("test_a_full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart",),
    ),
    Mutant(
        "replies_in_another_order",
        "an answer that is ready overtakes those before it",
        "statesvc/connection.py",
        "        self._line.append(answer)\n        self._line_bytes",
        "        self._line.insert(0, answer)\n        self._line_bytes",
        ("test_more_requests_at_once_than_may_be_under_way_are_all_answered_in_order[memory]",),
    ),
    Mutant(
        "no_space_is_success",
        "a write that the full disk refused is acknowledged",
        "statesvc/backends/sqlite/engine.py",
        "        except apsw.FullError:\n            raise NoSpace(DISK_FULL) from None",
        "        except apsw.FullError:\n            return self._committed",
        ("test_a_full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart",),
    ),
    Mutant(
        "half_a_claim_denied",
        "a claim of several records is said not to have happened although some were taken",
        "statesvc/store/claims.py",
        'if self._problem is not None and (not self.taken or self._problem.outcome == "unknown"):',
        "if self._problem is not None:",
        ("test_what_was_committed_before_the_disk_was_full_is_the_answer",),
    ),
    Mutant(
        "drain_does_not_wait",
        "on SIGTERM requests in flight are cut off, not answered",
        "statesvc/server.py",
        "await asyncio.wait([*duties, *finishing], timeout=self._settings.drain_seconds)",
        "await asyncio.wait([*duties, *finishing], timeout=0.0)",
        ("test_everything_sent_before_the_signal_and_read_is_answered",),
    ),
)

# --- exactly once ----------------------------------------------------------------------------------------------------

ONCE = (
    Mutant(
        "marks_not_kept",
        "a record does not remember which writes it has taken",
        "statesvc/store/writes.py",
        "    return marks.with_write(stored, caller.client, request, revision, moment.limits.marks_clients)",
        "    return stored",
        ("test_a_whole_life_replayed_on_another_connection_changes_nothing[word-for-word-memory]",),
    ),
    Mutant(
        "marks_forgotten_at_restart",
        "what a record remembers of its writes is not stored with it",
        "statesvc/backends/sqlite/log.py",
        "        payload = _encoder.encode(changes)\n",
        "        payload = _encoder.encode([\n"
        '            Change(each.event, msgspec.structs.replace(each.row, marks=b"")) for each in changes\n'
        "        ])\n",
        ("test_a_write_cut_off_in_its_commit_has_happened_or_not_and_sending_it_again_tells[reply.before]",),
    ),
    Mutant(
        "marks_below_the_newest_forgotten",
        "only the newest write of a client is remembered, not all above its floor",
        "statesvc/store/marks.py",
        "        elif last.seq + last.count <= floor:",
        "        elif True:",
        ("test_numbered_writes_through_a_proxy_that_doubles_and_replays_are_applied_once[1-memory]",),
    ),
    Mutant(
        "pushed_out_is_new",
        "a write that comes again to a record that dropped its mark is applied a second time",
        "statesvc/store/marks.py",
        "    if lost and marks.may_have_lost(client):",
        "    if False:",
        ("test_a_write_that_the_record_forgot_is_not_applied_again",),
    ),
    Mutant(
        "resent_without_again",
        "the adapter sends a write again as if it were the first time",
        "client/statesvc_client/writes.py",
        "frames.append(frame(write.id, msgspec.Raw(write.body), write.seq, floor, write.sent))",
        "frames.append(frame(write.id, msgspec.Raw(write.body), write.seq, floor, False))",
        ("test_a_write_that_the_record_forgot_is_not_applied_again",),
    ),
    Mutant(
        "outbox_turned_round",
        "after a lost connection the adapter sends the newest write first",
        "client/statesvc_client/outbox.py",
        "        self._next = self._first\n",
        "        self._next = self._first\n        self._writes[self._first :] = self._writes[self._first :][::-1]\n",
        ("test_what_is_written_while_the_daemon_is_away_arrives_once_and_in_order[killed-blocking]",),
    ),
    Mutant(
        "unsent_forgotten_on_reconnect",
        "what was in flight when the connection broke is never sent again",
        "client/statesvc_client/outbox.py",
        "        self._next = self._first\n",
        "        pass\n",
        ("test_a_daemon_that_is_silent_for_longer_than_it_is_waited_for_is_met_again",),
    ),
    Mutant(
        "dropped_when_full",
        "a write that a full outbox has no room for is dropped without a word",
        "client/statesvc_client/desk.py",
        "                return\n            self._wait_for_room(deadline)\n",
        "                return\n            return\n",
        ("test_a_queue_that_is_full_says_so_and_loses_nothing_of_what_it_took",),
    ),
    Mutant(
        "own_write_taken_back_by_an_answer",
        "an answer that is older than an own write is shown in its place",
        "client/statesvc_client/images.py",
        "guess.since <= asked and not",
        "not",
        ("test_an_answer_that_may_be_older_than_an_own_write_takes_nothing_of_it_away",),
    ),
    Mutant(
        "spooled_after_the_call",
        "a write whose call has returned is not in the spool",
        "client/statesvc_client/spool.py",
        '        self._hold(write.seq, self._append(b"W %d %b" % (write.seq, write.frame()), sync=self.sync_each))',
        "        self._hold(write.seq, 0)",
        ("test_with_the_spool_an_agent_killed_while_the_daemon_was_away_loses_nothing",),
    ),
    Mutant(
        "floor_before_its_fate_is_on_disk",
        "the daemon is told to forget a number whose fate a crash may make the spool forget",
        "client/statesvc_client/spool.py",
        "        return self._synced_floor\n",
        "        return self._floor\n",
        ("test_the_floor_follows_only_what_is_on_disk",),
    ),
)

# --- what is on the disk ---------------------------------------------------------------------------------------------

DISK = (
    Mutant(
        "leftovers_taken_for_nothing",
        "a store of which a WAL is left begins empty",
        "statesvc/backends/sqlite/opening.py",
        "    is_new = not _was_begun(paths)",
        "    is_new = not paths.watermark.exists() and not paths.state.exists()",
        ("test_whatever_is_left_of_a_store_tells_that_its_log_is_missing[log.db-wal]",),
    ),
    Mutant(
        "damage_taken_for_a_failing_disk",
        "a flipped bit that a write comes upon is told as a failing disk, and what helps is not",
        "statesvc/backends/sqlite/opening.py",
        "    if is_damage(problem):\n        return _damaged(path, problem, cure)",
        "    if False:\n        return _damaged(path, problem, cure)",
        ("test_a_flip_that_an_acknowledged_write_meets_is_told_as_by_a_start_and_costs_no_record[record]",),
    ),
    Mutant(
        "sync_left_out",
        "a commit is acknowledged that a power loss takes away",
        "statesvc/backends/sqlite/opening.py",
        'SYNCHRONOUS = {"disk": "FULL", "os": "NORMAL"}',
        'SYNCHRONOUS = {"disk": "OFF", "os": "NORMAL"}',
        ("test_a_failed_sync_of_the_log_is_unknown_ends_the_daemon_and_is_never_tried_again",),
    ),
    Mutant(
        "failed_sync_tried_again",
        "after a failed fsync the file is synced once more and believed",
        "statesvc/backends/sqlite/engine.py",
        "            self._log_failed(problem)\n            what = ",
        "            again = self._committer.submit(lambda: self._files.log.append(changes))\n"
        "            return await asyncio.wrap_future(again)\n            what = ",
        ("test_a_failed_sync_of_the_log_is_unknown_ends_the_daemon_and_is_never_tried_again",),
    ),
    Mutant(
        "failed_sync_trusted_by_the_next_start",
        "what a failed sync left out of a WAL is held for safe after a restart, and cut off the log",
        "statesvc/backends/sqlite/files.py",
        "    write_anew(path)\n",
        "",
        ("test_a_wal_of_the_state_whose_sync_failed_is_written_anew_before_it_is_synced_again",),
    ),
    Mutant(
        "page_checksums_ignored",
        "a flipped bit in an index makes a list shorter, and nobody is told",
        "statesvc/backends/sqlite/files.py",
        '    return "cksmvfs"',
        '    return "unix"',
        ("test_a_bit_of_every_page_of_a_store_with_deep_trees_and_a_record_of_many_pages",),
    ),
    Mutant(
        "record_checksums_ignored",
        "a record that is not what was stored is served",
        "statesvc/backends/sqlite/state.py",
        "    if zlib.crc32(data) != checksum:",
        "    if False:",
        ("test_a_record_that_was_changed_behind_every_page_checksum_is_an_error_and_not_an_answer",),
    ),
    Mutant(
        "chain_not_checked",
        "entries of the log that were changed are replayed",
        "statesvc/backends/sqlite/log.py",
        "        if chained(end.digest, first, payload) != digest:",
        "        if False:",
        ("test_the_check_of_a_store_finds_a_flip_in_any_entry_of_its_log",),
    ),
    Mutant(
        "watermark_not_checked",
        "a log that lost its tail is served as if it had never had more",
        "statesvc/backends/sqlite/log.py",
        "        if self._mark is not None:\n            self._check_against(self._mark)",
        "        pass",
        ("test_a_log_that_was_set_back_together_with_the_state_is_refused",),
    ),
    Mutant(
        "wal_tail_not_looked_at",
        "commits that SQLite leaves out of a damaged WAL are lost without a word",
        "statesvc/backends/sqlite/files.py",
        "        judge(tail)\n        _refuse_cut",
        "        judge(Tail(0, 0, tail.taken, tail.salts))\n        _refuse_cut",
        ("test_damage_in_the_middle_of_the_wal_is_refused_and_what_lies_behind_it_is_left_there",),
    ),
    Mutant(
        "leftovers_stay_in_the_wal",
        "what one power loss left in a WAL is taken for damage after the next: an intact store is refused",
        "statesvc/backends/sqlite/files.py",
        "            if self._has_torn_tail:",
        "            if False:",
        ("test_what_one_power_loss_left_in_a_wal_is_no_damage_to_the_next",),
    ),
    Mutant(
        "loss_known_to_one_start_alone",
        "who goes on without a damaged part of the log keeps the epoch, if the first such start fails",
        "statesvc/backends/sqlite/log.py",
        "        boots.note_loss(self._note_path)\n",
        "",
        ("test_the_start_that_leaves_it_out_fails_for_another_reason",),
    ),
    Mutant(
        "torn_tail_not_told",
        "a torn tail is cut off without a word of its length",
        "statesvc/backends/sqlite/log.py",
        "        if tail.bytes:\n            log.warning",
        "        if False:\n            log.warning",
        ("test_damage_in_the_last_commit_of_a_busy_store_is_told_as_a_torn_tail_with_its_length",),
    ),
    Mutant(
        "newer_format_opened",
        "a store that a newer version wrote is opened by an older one",
        "statesvc/backends/sqlite/files.py",
        "    if version is not None and version > format_.newest:",
        "    if False:",
        ("test_a_newer_format_is_refused_and_left_untouched",),
    ),
    Mutant(
        "snapshot_named_before_it_is_synced",
        "a snapshot has its name before it is on the disk",
        "statesvc/store/snapshots.py",
        "            os.fsync(self._file)\n"
        "        if failpoints.armed:\n"
        '            failpoints.reach("snapshot.whole")\n'
        "        self._place.keep()\n",
        "            self._place.keep()\n"
        "            os.fsync(self._file)\n"
        "        if failpoints.armed:\n"
        '            failpoints.reach("snapshot.whole")\n',
        ("test_a_kill_in_a_snapshot_leaves_nothing_that_passes_for_one_and_no_damage[snapshot.whole]",),
    ),
    Mutant(
        "same_epoch_after_a_restore",
        "clients are not told that what they were acknowledged may be gone",
        "statesvc/backends/memory.py",
        "        self._log.begin_anew()\n        self.epoch = epoch_names.following(self.epoch)\n",
        "        self._log.begin_anew()\n",
        ("test_a_restore_begins_a_new_epoch_which_the_next_hello_tells[memory]",),
    ),
    Mutant(
        "refused_write_kept_in_memory",
        "what a full disk refused stays laid over the record, and is written with whatever comes next",
        "statesvc/store/store.py",
        "        self.commits.failed.append(self._undone)\n",
        "",
        ("test_what_a_full_disk_refused_is_never_served_nor_written_over_what_comes_next",),
    ),
    Mutant(
        "full_disk_taken_for_a_failing_one",
        "a disk without room for what SQLite keeps beside an open file ends the daemon",
        "statesvc/backends/sqlite/files.py",
        "isinstance(problem, apsw.FullError) or _extended(problem) == apsw.SQLITE_IOERR_SHMSIZE",
        "isinstance(problem, apsw.FullError)",
        (
            "test_a_store_that_was_closed_is_waited_for_on_a_disk_that_is_full_since[fill_up]",
            "test_a_state_whose_wal_has_no_space_for_a_longer_index_lags_behind_as_well",
        ),
    ),
    Mutant(
        "dump_holds_up_the_end",
        "a store cannot be closed while a snapshot of it looks at its trees",
        "statesvc/backends/sqlite/dumping.py",
        "        self._db.set_progress_handler(self._closing.is_set, LOOK_STEPS)\n",
        "",
        ("test_a_store_that_closes_before_the_look_at_its_trees_does_not_wait_for_it",),
    ),
    Mutant(
        "times_without_bound",
        "a time with millions of digits is kept, whatever a record may take",
        "statesvc/store/clock.py",
        "\\d{0,32})?",
        "\\d*)?",
        ("test_no_time_is_longer_than_times_are",),
    ),
    Mutant(
        "sent_at_the_last_moment",
        "a write that was refused is sent again when there is no time left for its answer: not applied becomes unknown",
        "statesvc/backends/redis/link.py",
        "return until - KEPT_FOR_THE_ANSWER * (until - now)",
        "return until",
        ("test_a_refused_write_is_not_sent_again_when_its_answer_might_come_too_late",),
    ),
    Mutant(
        "snapshot_of_misplaced_pages",
        "a snapshot lacks what stands on a page in whose place another lies",
        "statesvc/backends/sqlite/dumping.py",
        "        _refuse_misplaced(db)\n",
        "",
        ("test_a_page_in_the_place_of_another_is_noticed_though_it_matches_its_checksum",),
    ),
)

# --- rules -----------------------------------------------------------------------------------------------------------

RULES = (
    Mutant(
        "revision_not_compared",
        "a write on condition of a revision overwrites another's",
        "statesvc/store/writes.py",
        "        return _update_absent(request, fields, subject, caller, moment)\n"
        "    if request.if_revision is not None and request.if_revision != row.revision:",
        "        return _update_absent(request, fields, subject, caller, moment)\n    if False:",
        ("test_nothing_acknowledged_is_lost_and_nothing_is_applied_twice_over_many_kills[disk-race]",),
    ),
    Mutant(
        "token_not_compared",
        "a holder whose lease another has by now still writes",
        "statesvc/store/writes.py",
        '    if lease["token"] != token:',
        "    if False:",
        ("test_a_guarded_write_passes_with_the_newest_token_only",),
    ),
    Mutant(
        "lease_by_the_wall_clock",
        "a clock that is set ends leases, or keeps them for ever",
        "statesvc/store/store.py",
        "        self.leases = Leases(self.clock.steady)",
        "        self.leases = Leases(lambda: self.clock.now() / 1e9)",
        ("test_a_lease_that_is_kept_outlives_the_jump_and_one_that_is_not_lapses[a-day-back]",),
    ),
    Mutant(
        "token_begins_anew",
        "a fencing token is given out a second time once its record was made again",
        "statesvc/store/leasing.py",
        "    token = max(moment.token_floor, 0 if row is None else row.token) + 1",
        "    token = max(moment.token_floor, 0 if row is None or row.deleted else row.token) + 1",
        ("test_the_token_grows_over_release_delete_and_rebirth",),
    ),
    Mutant(
        "late_write_revives",
        "an update that comes after the delete makes the record again",
        "statesvc/store/writes.py",
        "    if request.if_revision or not (request.upsert or overtook_its_create):",
        "    if request.if_revision or not (request.upsert or overtook_its_create or subject.row is not None):",
        ("test_a_deleted_record_is_gone_and_a_late_update_does_not_revive_it[memory]",),
    ),
)

# --- who may, and how much -------------------------------------------------------------------------------------------

BOUNDS = (
    Mutant(
        "stale_socket_taken_unseen",
        "the socket of somebody who lives is taken away",
        "statesvc/process/listener.py",
        "    if _is_own_socket(path) and _answers(path):",
        "    if _is_own_socket(path) and False:",
        ("test_a_socket_somebody_else_listens_on_is_not_taken",),
    ),
    Mutant(
        "second_daemon_let_in",
        "two daemons write to one store",
        "statesvc/process/locks.py",
        "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("test_a_second_daemon_on_the_same_data_is_told_so_and_the_first_never_notices",),
    ),
    Mutant(
        "last_of_two_keys_taken",
        "of a key that is given twice the last one counts, whatever was meant",
        "client/statesvc_client/wire.py",
        "        _check_keys(frame, _decode_object(frame))\n    return request",
        "        pass\n    return request",
        ("tests/faults/test_f08_bad_input.py::test_a_bad_line_gets_its_code_and_changes_nothing[memory]",),
    ),
    Mutant(
        "reads_go_on_for_nobody",
        "what a client asked for is looked for to the end though it has hung up",
        "statesvc/answers.py",
        "        self.is_deaf = True\n",
        "",
        ("test_a_request_that_changes_nothing_ends_when_its_client_hangs_up[memory-list]",),
    ),
    Mutant(
        "unfinished_frames_kept",
        "a frame that nobody can end any more is kept for as long as a reply is waited for, or a watch lasts",
        "statesvc/connection.py",
        "        self._splitter.drop()  # it never will be whole; replies and watches may take long\n",
        "",
        ("test_a_frame_that_was_not_ended_is_not_kept_for_a_client_that_only_reads",),
    ),
    Mutant(
        "lost_connections_kept",
        "a connection that is over stays, with what it had of a frame, until somebody looks for cycles",
        "statesvc/connection.py",
        "        self._session.part()\n",
        "",
        ("test_nothing_is_left_of_connections_that_are_over[a request]",),
    ),
    Mutant(
        "mode_set_after_bind",
        "for a moment the socket is as open as the umask leaves it",
        "statesvc/process/listener.py",
        "    before = os.umask(0o777 & ~mode)",
        "    before = os.umask(0)",
        ("test_a_stranger_racing_starts_under_umask_000_gets_nothing[every step held open]",),
    ),
    Mutant(
        "peers_not_looked_at",
        "any user who reaches the socket is served",
        "statesvc/server.py",
        "        if not self._access.allows(peer):",
        "        if False:",
        ("test_a_foreign_user_is_denied_even_when_the_socket_is_open_to_all",),
    ),
    Mutant(
        "secrets_in_events",
        "watchers and histories show secretEnvironment",
        "statesvc/store/telling.py",
        '        body = b"" if entry.row.deleted else without_secrets(entry.row.body)',
        '        body = b"" if entry.row.deleted else entry.row.body',
        ("test_the_secret_environment_of_a_job_is_in_what_get_list_and_claim_show_and_in_private_files",),
    ),
    Mutant(
        "secrets_in_replies_to_writes",
        "the reply to a write shows secretEnvironment",
        "statesvc/handlers/records.py",
        "without_secrets(row.body))\n",
        "row.body)\n",
        ("test_the_secret_environment_of_a_job_is_in_what_get_list_and_claim_show_and_in_private_files",),
    ),
    Mutant(
        "line_without_end",
        "a line that never ends is kept in memory however long it gets",
        "client/statesvc_client/framing.py",
        "        if self._held > self.limit:",
        "        if False:",
        ("test_a_hundred_megabytes_without_a_newline_are_too_large_and_cost_a_frame_at_most[memory]",),
    ),
    Mutant(
        "commits_without_a_pause",
        "one client that pipelines keeps a daemon on memory to itself",
        "statesvc/store/batches.py",
        "            await asyncio.sleep(0)\n\n    async def _committed",
        "\n    async def _committed",
        ("test_an_engine_that_never_waits_lets_others_in_between_two_commits",),
    ),
    Mutant(
        "slow_reader_without_bound",
        "replies pile up for a client that never reads",
        "statesvc/connection.py",
        "            self._writable\n            and not self._discarding",
        "            True\n            and not self._discarding",
        ("test_replies_that_nobody_takes_are_not_made",),
    ),
    Mutant(
        "claims_grow_records",
        "what a claim puts into a record is not bound by what a frame may carry",
        "statesvc/store/leasing.py",
        'move="step", given=own, event="claimed"',
        'move="step", given={}, event="claimed"',
        ("test_a_record_does_not_grow_so_far_by_a_claim_or_what_is_told_of_its_progress_either[memory]",),
    ),
    Mutant(
        "a_library_every_time",
        "giving memory back takes three kilobytes each time, until somebody looks for cycles",
        "statesvc/process/memory.py",
        "@cache\n",
        "",
        ("test_giving_back_leaves_nothing_behind_itself",),
    ),
)

# --- shared engines --------------------------------------------------------------------------------------------------

SHARED = (
    Mutant(
        "replicas_not_waited_for",
        "a write is acknowledged as replicated though WAIT says that no replica has it",
        "statesvc/backends/redis/replicas.py",
        "        if waited < self._wanted:",
        "        if False:",
        ("test_failovers_with_replicas_waited_for_lose_nothing_acknowledged",),
    ),
    Mutant(
        "lost_reply_is_not_applied",
        "a write to DynamoDB whose reply was dropped is told as not applied",
        "statesvc/backends/dynamodb/committing.py",
        '        """No reply told. What is stored tells, or is made to."""\n',
        '        return [Unavailable("DynamoDB did not answer in time; nothing was written")] * len(sent.units)\n',
        ("test_what_cannot_be_found_out_is_called_unknown_and_found_out_later",),
    ),
    Mutant(
        "claimed_again_in_doubt",
        "a claim whose first try was applied and overtaken takes the record a second time",
        "statesvc/store/store.py",
        "                if once and unsure and rows != basis:",
        "                if False:",
        ("test_a_claim_that_was_taken_away_since_is_not_made_again",),
    ),
    Mutant(
        "renewed_claim_not_recognised",
        "a claim of unknown fate that was renewed elsewhere is not known to have been made",
        "statesvc/store/store.py",
        "(row == write.row or (once and _is_same_claim(row, write.row)))",
        "row == write.row",
        ("test_a_numbered_claim_that_was_sent_again_elsewhere_and_renewed_there_is_still_the_same",),
    ),
    Mutant(
        "conflict_overwritten",
        "a write decided on a state that is gone is applied on a shared engine",
        "statesvc/store/batches.py",
        '        if not holds:\n            return "conflict"',
        '        if False:\n            return "conflict"',
        ("test_three_daemons_keep_every_promise_under_a_mixed_load[redis]",),
    ),
    Mutant(
        "tokens_come_again_after_a_loss",
        "what was lost with a failover is forgotten, and its fencing tokens are given out a second time",
        "statesvc/store/store.py",
        "        return max(self._token_floor, token_floor(self.engine.epoch))",
        "        return self._token_floor",
        ("test_a_master_that_came_back_empty_before_anybody_noticed_begins_a_new_epoch_and_everybody_is_told",),
    ),
    Mutant(
        "empty_server_taken_for_new",
        "a daemon that knows what a Redis held goes along with one that found it empty, and tokens begin at 1",
        "statesvc/backends/redis/epochs.py",
        "        return epoch_names.token_floor(epoch) > self._known_floor",
        "        return True",
        ("test_a_server_that_came_back_empty_is_not_taken_for_new_once_a_daemon_meets_it_that_knows_better",),
    ),
    Mutant(
        "old_epoch_answered",
        "who knows the old epoch is told what a store holds that lost it, as if nothing had been lost",
        "statesvc/server.py",
        "            connection.abort()\n\n    # --- while serving",
        "            connection.finish()\n\n    # --- while serving",
        ("test_nobody_who_was_told_of_the_old_epoch_is_told_anything_of_a_store_that_lost_it",),
    ),
    Mutant(
        "large_requests_not_counted",
        "as many large requests wait for a store that hangs as small ones",
        "statesvc/connection.py",
        "            size = len(frame) + VALUE_BYTES * values_at_most(frame)",
        "            size = 0",
        ("test_a_flood_against_a_store_that_hangs_costs_a_bounded_amount_of_memory[redis-large]",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*ANSWERS, *ONCE, *DISK, *RULES, *BOUNDS, *SHARED)
