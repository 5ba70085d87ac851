"""claim, renew, release, cancel, retry and emit against a real daemon. Each test has a node or ids of its own."""

from __future__ import annotations

import getpass
import socket

import pytest

from tests.cli.running import ended, run, started


@pytest.fixture
def queued(ask):
    """Jobs in the queue of a node of their own, best first."""

    def put(node: str, *names: str) -> None:
        for rank, name in enumerate(names):
            ask("create", name, "--status", "QUEUED", "--node", node, f"priority={10 - rank}")

    return put


def test_a_job_goes_from_the_queue_through_a_claim_to_its_end(ask, queued):
    queued("n-life", "q-1")
    claimed = ask("claim", "--node", "n-life", "--ttl", "60", "pid=7").record
    assert (claimed["status"], claimed["pid"], claimed["lease"]["ttl"]) == ("RUNNING", 7, 60)
    token = str(claimed["lease"]["token"])
    kept = ask("renew", "q-1", "--token", token, "--ttl", "90", "progress=50").record
    assert (kept["lease"]["beat"], kept["lease"]["ttl"], kept["cancelRequested"]) == (1, 90, False)
    done = ask("release", "q-1", "--token", token, "--status", "COMPLETED", "exitCode=0").record
    assert (done["status"], done["progress"], done["exitCode"]) == ("COMPLETED", 50, 0)
    assert "lease" not in done


def test_the_best_are_claimed_first_and_as_many_as_wanted(ask, queued):
    queued("n-best", "best-1", "best-2", "best-3")
    taken = ask("claim", "--node", "n-best", "--limit", "2").records
    assert [each["uuid"] for each in taken] == ["best-1", "best-2"]


def test_the_holder_is_the_user_on_this_host_unless_another_is_named(ask, queued):
    queued("n-who", "who-1", "who-2")
    assert ask("claim", "--node", "n-who").record["lease"]["holder"] == f"{getpass.getuser()}@{socket.gethostname()}"
    assert ask("claim", "--node", "n-who", "--holder", "me").record["lease"]["holder"] == "me"


def test_a_table_of_claims_shows_token_and_holder(ask, queued):
    queued("n-tab", "tab-1")
    headings, row = ask("claim", "--node", "n-tab", "--holder", "me", "-o", "table").out.splitlines()
    assert headings.split() == ["ID", "STATUS", "TOKEN", "HOLDER", "EXPIRES", "COMMAND"]
    assert row.split()[:4] == ["tab-1", "RUNNING", "1", "me"]


@pytest.mark.parametrize(("output", "out"), [("json", "[]\n"), ("jsonl", ""), ("table", "")])
def test_nothing_ready_exits_75_and_prints_nothing(ask, output, out):
    answer = ask("claim", "--node", "n-nobody", "-o", output)
    assert (answer.code, answer.out, answer.err) == (75, out, "nothing is ready\n")


def test_a_claim_can_wait_for_a_job_to_come(served, ask, queued):
    with started("claim", "--node", "n-wait", "--wait", "60", "--timeout", "5", "--socket", str(served)) as waiting:
        queued("n-wait", "wait-1")
        answer = ended(waiting)
    assert (answer.code, answer.record["uuid"]) == (0, "wait-1")


def test_a_claim_by_id_makes_what_is_absent_and_is_refused_to_the_second(ask):
    first = ask("claim", "leader", "--kind", "lock", "--holder", "a", 'info={"pid": 1}')
    assert (first.record["lease"]["holder"], first.record["info"]) == ("a", {"pid": 1})
    second = ask("claim", "leader", "--kind", "lock", "--holder", "b")
    assert (second.code, second.err) == (75, "leader is held by another\n")
    held = ask("list", "--kind", "lock", "--id", "leader", "-o", "table").out.splitlines()
    assert held[0].split() == ["ID", "HOLDER", "TOKEN", "EXPIRES", "REVISION", "UPDATED"]
    assert held[1].split()[:3] == ["leader", "a", "1"]


def test_a_token_guards_an_update_until_it_is_stale(ask):
    token = str(ask("claim", "guard", "--kind", "lock").record["lease"]["token"])
    assert ask("update", "guard", "a=1", "--token", token, "--kind", "lock").record["a"] == 1
    assert ask("release", "guard", "--token", token, "--kind", "lock").code == 0
    for late in (
        ["update", "guard", "a=2", "--token", token],
        ["renew", "guard", "--token", token],
        ["release", "guard", "--token", token],
    ):
        refused = ask(*late, "--kind", "lock")
        assert refused.code == 4
        assert refused.err.startswith("lease_lost: ")


def test_secrets_of_a_claimed_job_are_printed_only_when_asked_for(ask):
    for name in ("sec-1", "sec-2"):
        ask("create", name, "--status", "QUEUED", "--node", "n-sec", 'secretEnvironment={"KEY": "hunter2"}')
    assert "hunter2" not in ask("claim", "--node", "n-sec").out
    assert "hunter2" in ask("claim", "--node", "n-sec", "--show-secrets").out


def test_a_job_given_back_waits_in_the_queue_again(ask, queued):
    queued("n-back", "back-q")
    token = str(ask("claim", "--node", "n-back").record["lease"]["token"])
    assert ask("release", "back-q", "--token", token, "--delay", "3600").record["status"] == "SCHEDULED"
    assert ask("claim", "--node", "n-back").code == 75


def test_cancel_ends_what_waits_and_asks_the_holder_of_what_runs(ask, queued):
    queued("n-cancel", "cancel-1", "cancel-2")
    token = str(ask("claim", "--node", "n-cancel").record["lease"]["token"])
    assert ask("cancel", "cancel-2").record["status"] == "CANCELED"
    assert ask("cancel", "cancel-1").record["cancelRequested"] is True
    assert ask("renew", "cancel-1", "--token", token).record["cancelRequested"] is True
    assert ask("release", "cancel-1", "--token", token).record["status"] == "CANCELED"
    assert ask("retry", "cancel-1").code == 4


def test_retry_puts_a_failed_job_back(ask):
    ask("create", "retry-1", "--status", "FAILED")
    assert ask("retry", "retry-1").record["status"] == "QUEUED"


def test_emit_adds_an_event_of_ones_own(ask):
    ask("create", "emit-1")
    made = ask("emit", "emit-1", "note", "--message", "hi", "--data", "[1]").record
    assert made["revision"] == 2
    assert made["cursor"]
    assert ask("emit", "no-such", "note").code == 3
    assert ask("emit", "emit-1", "updated").code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["claim", "x", "--node", "n"], "give an ID or a filter, not both"),
        (["renew", "x"], "Missing option '--token'"),
        (["release", "x", "--token", "0"], "--token"),
        (["emit", "x", "note", "--data", "text"], "--data: 'text' is not JSON"),
        (["emit", "x"], "Missing argument 'TYPE'"),
    ],
)
def test_a_wrong_usage_exits_2_and_says_what_is_wrong(tmp_path, words, told):
    answer = run(*words, "--socket", str(tmp_path / "none.sock"))
    assert answer.code == 2
    assert told in answer.err
