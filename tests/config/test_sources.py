"""Where values come from and what is refused, with real files and given environments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statesvc.config import BadConfiguration, Secret, Settings, load
from statesvc.config import file as file_module
from statesvc.config import sources as sources_module
from statesvc_client import wire
from tests.users import not_root

JOBLET_FILE = """
version: "3.0"
server:
  address: "0.0.0.0"
logging:
  level: "INFO"
state:
  backend: "memory"
  socket: "/opt/joblet/run/state-ipc.sock"
  buffer_size: 10000
  reconnect_delay: "5s"
  pool_size: 20
  pool:
    size: 20
    read_timeout: "10s"
  client:
    max_retries: 3
  storage:
    dynamodb:
      region: ""
      table_name: "joblet-jobs"
      ttl_enabled: true
      ttl_attribute: "expiresAt"
      ttl_days: 30
      read_capacity: 5
      write_capacity: 5
      batch_size: 25
      batch_interval: "100ms"
    redis:
      endpoint: "localhost:6379"
      password: ""
      db: 0
      ttl_days: 30
"""


@pytest.fixture(autouse=True)
def no_usual_files(monkeypatch):
    """What is installed on the machine that runs the tests is none of their business."""
    monkeypatch.setattr(sources_module, "USUAL_FILES", ())


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "statesvc.yml"
    file.write_text(text)
    file.chmod(mode)
    return file


def problems_of(flags=None, environ=None) -> str:
    with pytest.raises(BadConfiguration) as caught:
        load(flags or {}, environ or {})
    assert caught.value.exit_code == 78
    return str(caught.value)


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Nobody may look into the folder, and we are not root."""
    folder.chmod(0)
    try:
        with not_root():
            yield
    finally:
        folder.chmod(0o700)


def test_nothing_given_means_the_defaults():
    loaded = load({}, {})
    assert loaded.settings == Settings()
    assert loaded.file is None
    assert set(loaded.origins.values()) == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path):
    file = written(tmp_path, "state:\n  limits: {clients: 1, depth: 11, id_chars: 1}\n")
    environ = {"STATESVC_LIMITS__CLIENTS": "2", "STATESVC_LIMITS__DEPTH": "12"}
    loaded = load({"config": file, "limits.clients": 3}, environ)
    limits = loaded.settings.limits
    assert (limits.clients, limits.depth, limits.id_chars, limits.list_limit) == (3, 12, 1, 1000)
    assert loaded.origins["limits.clients"] == "flag --limits-clients"
    assert loaded.origins["limits.depth"] == "environment STATESVC_LIMITS__DEPTH"
    assert loaded.origins["limits.id_chars"] == f"file {file}"
    assert loaded.origins["limits.list_limit"] == "default"


def test_a_flag_that_was_not_given_is_none_and_changes_nothing():
    assert load({"socket": None, "config": None}, {}).settings == Settings()


def test_the_named_file_wins_in_the_order_flag_own_variable_joblets_variable(tmp_path):
    names = ("flag", "own", "joblet")
    files = {name: tmp_path / name for name in names}
    for name, file in files.items():
        file.write_text(f"state: {{socket: /{name}}}\n")
    environ = {"STATESVC_CONFIG": str(files["own"]), "JOBLET_CONFIG_PATH": str(files["joblet"])}
    assert load({"config": files["flag"]}, environ).settings.socket == Path("/flag")
    assert load({}, environ).settings.socket == Path("/own")
    del environ["STATESVC_CONFIG"]
    assert load({}, environ).settings.socket == Path("/joblet")


def test_a_usual_place_is_used_when_there_is_a_file_and_passed_over_when_there_is_none(tmp_path, monkeypatch):
    file = written(tmp_path, "state: {backend: memory}\n")
    monkeypatch.setattr(sources_module, "USUAL_FILES", (tmp_path / "missing.yml", file))
    loaded = load({}, {})
    assert (loaded.settings.backend, loaded.file) == ("memory", file)


@pytest.mark.parametrize("serving", [True, False])
def test_a_usual_place_that_cannot_be_looked_at_is_passed_over_and_told(tmp_path, monkeypatch, serving):
    place = tmp_path / "closed" / "statesvc.yml"
    place.parent.mkdir()
    monkeypatch.setattr(sources_module, "USUAL_FILES", (place,))
    with closed(place.parent):
        loaded = load({}, {}, serving=serving)
    assert (loaded.settings, loaded.file, loaded.hidden) == (Settings(), None, (place,))
    assert load({}, {}).hidden == (), "it is not hidden, only missing"


def test_a_named_file_that_cannot_be_looked_at_is_an_error(tmp_path):
    file = tmp_path / "closed" / "statesvc.yml"
    file.parent.mkdir()
    with closed(file.parent):
        assert problems_of({"config": file}) == f"{file}: cannot be read: Permission denied"


@pytest.mark.parametrize("variable", ["STATESVC_CONFIG", "JOBLET_CONFIG_PATH"])
def test_a_named_file_that_is_missing_is_an_error_that_says_who_named_it(tmp_path, variable):
    missing = str(tmp_path / "no.yml")
    assert problems_of({"config": missing}) == f"{missing}: there is no such configuration file (flag --config)"
    assert f"environment {variable}" in problems_of({}, {variable: missing})


def test_an_existing_joblet_file_loads_and_its_agents_keys_have_no_effect(tmp_path):
    settings = load({"config": written(tmp_path, JOBLET_FILE, 0o644)}, {}).settings
    assert settings.backend == "memory"
    assert settings.socket == Path("/opt/joblet/run/state-ipc.sock")
    assert settings.storage.dynamodb == Settings().storage.dynamodb
    assert settings.storage.redis.password == Secret("")


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "state:\n", "state: {}\n", "server: {port: 1}\n", "state: {limits: }"]
)
def test_a_file_without_values_means_the_defaults(tmp_path, text):
    assert load({"config": written(tmp_path, text)}, {}).settings == Settings()


@pytest.mark.parametrize(
    ("line", "unknown", "nearest"),
    [
        ("limits: {client: 7}", "limits.client", "limits.clients"),
        ("sockett: /x", "sockett", "socket"),
        ("clients: 7", "clients", "limits.clients"),
        ("storage: {sqllite: {cache_bytes: 1}}", "storage.sqllite", "storage.sqlite"),
        ("log: {levle: info}", "log.levle", "log.level"),
    ],
)
def test_an_unknown_key_is_refused_by_its_dotted_name_with_the_nearest_known_one(tmp_path, line, unknown, nearest):
    file = written(tmp_path, f"state:\n  {line}\n")
    assert problems_of({"config": file}) == f"{unknown}: unknown key (file {file}); did you mean {nearest}?"


def test_an_unknown_variable_is_refused_by_name():
    text = problems_of({}, {"STATESVC_LIMITS__CLIENT": "1", "HOME": "/home/x"})
    assert text == ("limits.client: unknown key (environment STATESVC_LIMITS__CLIENT); did you mean limits.clients?")


def test_a_variable_in_the_place_of_a_section_is_told_what_it_stands_for():
    problems = problems_of({}, {"STATESVC_LIMITS": "5"})
    assert problems == "limits: must be a section with keys of its own (environment STATESVC_LIMITS)"


def test_a_key_that_cannot_be_printed_stays_on_one_line(tmp_path):
    file = written(tmp_path, 'state: {"a\\nb\\e": 1}\n')
    assert problems_of({"config": file}) == f"'a\\nb\\x1b': unknown key (file {file})"


def test_a_key_that_is_like_no_other_is_refused_without_a_suggestion():
    assert problems_of({}, {"STATESVC_XYZZY": "1"}) == "xyzzy: unknown key (environment STATESVC_XYZZY)"


def test_every_problem_is_listed_one_a_line(tmp_path):
    file = written(tmp_path, "state:\n  durability: disc\n  limits: {clients: many, depth: 0}\n  foo: 1\n")
    assert problems_of({"config": file}).splitlines() == [
        f"foo: unknown key (file {file})",
        f"durability: 'disc' is not allowed (file {file}); it takes one of: disk, os",
        f"limits.clients: 'many' is not allowed (file {file}); it takes a whole number from 1 to 1000000",
        f"limits.depth: 0 is not allowed (file {file}); it takes a whole number from 8 to 512",
    ]


@pytest.mark.parametrize("backend", ["postgres", "local", ""])
def test_a_backend_that_is_not_part_of_this_version_is_named_with_the_known_ones(backend):
    known = "memory, sqlite, redis, dynamodb"
    expected = f"backend '{backend}' is not part of this version; known: {known} (flag --backend)"
    assert problems_of({"backend": backend}) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limits.clients", "true"),
        ("limits.clients", '"12"'),
        ("limits.clients", "1.5"),
        ("limits.clients", "null"),
        ("limits.frame_bytes", "0"),
        ("limits.frame_bytes", "65535"),
        ("limits.frame_bytes", "1" + "0" * 30),
        ("drain_seconds", "-1"),
        ("drain_seconds", ".nan"),
        ("drain_seconds", ".inf"),
        ("require_backend", "1"),
        ("socket", "5"),
        ("socket", '""'),
        ("socket", '"a\\0b"'),
        ("access.socket_mode", "0600"),  # YAML reads an unquoted 0600 as the number 384
        ("access.socket_mode", '"600"'),
        ("access.socket_mode", '"0900"'),
        ("access.uids", "root"),
        ("access.uids", "[-1]"),
        ("access.uids", "[[1]]"),
        ("lifecycles", "{job: [RUNNING]}"),
        ("lifecycles", "{job: {RUNNING: PAUSED}}"),
        ("limits", "[1]"),
        ("storage.redis.password", "1234"),
    ],
)
def test_a_value_of_the_wrong_form_in_a_file_is_refused_by_its_key(tmp_path, key, value):
    line = value
    for name in reversed(key.split(".")):
        line = f"{{{name}: {line}}}"
    assert problems_of({"config": written(tmp_path, f"state: {line}\n")}).startswith(f"{key}: ")


def test_the_environment_can_hold_every_form_of_value():
    settings = load(
        {},
        {
            "STATESVC_REQUIRE_BACKEND": "Yes",
            "STATESVC_DRAIN_SECONDS": "2.5",
            "STATESVC_DATA": "/data",
            "STATESVC_ACCESS__UIDS": "0, root",
            "STATESVC_ACCESS__GIDS": '["root", 12]',
            "STATESVC_ACCESS__SOCKET_MODE": "0660",
            "STATESVC_ACCESS__SOCKET_GROUP": "",
            "STATESVC_LIFECYCLES": '{"job": {"RUNNING": ["PAUSED"]}}',
            "STATESVC_STORAGE__REDIS__PASSWORD": "hunter2",
            "STATESVC_LOG__LEVEL": "debug",
        },
    ).settings
    assert settings.require_backend is True
    assert settings.drain_seconds == 2.5
    assert settings.data == Path("/data")
    assert (settings.access.uids, settings.access.gids) == ((0, "root"), ("root", 12))
    assert (settings.access.socket_mode, settings.access.socket_group) == ("0660", None)
    assert settings.lifecycles == {"job": {"RUNNING": ("PAUSED",)}}
    assert settings.storage.redis.password == Secret("hunter2")
    assert settings.log.level == "debug"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("STATESVC_REQUIRE_BACKEND", "maybe"),
        ("STATESVC_DRAIN_SECONDS", "soon"),
        ("STATESVC_LIMITS__CLIENTS", "1.5"),
        ("STATESVC_LIFECYCLES", "{broken"),
        ("STATESVC_ACCESS__UIDS", "[broken"),
        ("STATESVC_SOCKET", ""),
        ("STATESVC_SOCKET", "/run/\udcff.sock"),
        ("STATESVC_STORAGE__REDIS__USERNAME", "\udcff"),
        ("STATESVC_LIFECYCLES", "\udcff"),
        ("STATESVC_LIFECYCLES", '{"a":' * 100_000),
        ("STATESVC_ACCESS__UIDS", "[" * 100_000),
        ("STATESVC_ACCESS__SOCKET_MODE", "0600\n"),
        ("STATESVC_STORAGE__REDIS__NAMESPACE", "statesvc\n"),
        ("STATESVC_LIMITS__CLIENTS", "9" * 5000),
    ],
)
def test_a_variable_that_cannot_be_read_is_refused_by_name(variable, text):
    assert f"(environment {variable}); it takes " in problems_of({}, {variable: text})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_with_a_secret_that_others_can_open_is_refused_and_the_secret_not_shown(tmp_path, mode):
    file = written(tmp_path, "state: {storage: {redis: {password: hunter2}}}\n", mode)
    text = problems_of({"config": file})
    assert f"storage.redis.password: {file} holds a secret" in text
    assert f"chmod 600 {file}" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
def test_a_file_that_others_can_change_is_refused_whatever_it_holds(tmp_path, mode):
    file = written(tmp_path, "state: {backend: memory}\n", mode)
    assert problems_of({"config": file}) == (
        f"{file}: can be changed by others (mode {mode:04o}); run: chmod go-w {file}"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_daemon_obeys_files_of_its_own_user_and_of_root_only(tmp_path):
    file = written(tmp_path, "state: {backend: memory}\n")
    os.chown(file, 54321, 0)
    with pytest.raises(BadConfiguration, match=f"{file}: belongs to uid 54321; the daemon obeys files of uid 0 and"):
        load({"config": file}, {}, serving=True)
    assert load({"config": file}, {}).settings.backend == "memory", "who only looks for the socket may use it"


def test_it_is_the_file_that_was_read_whose_mode_counts(tmp_path, monkeypatch):
    """Whoever puts a private file in its place in the very moment after it was read gains nothing."""
    file = written(tmp_path, "state: {storage: {redis: {password: hunter2}}}\n", 0o644)
    read = file_module._read

    def read_then_replaced(path):
        result = read(path)
        written(tmp_path / "..", "", 0o600).replace(path)
        return result

    monkeypatch.setattr(file_module, "_read", read_then_replaced)
    assert "holds a secret and can be opened by others (mode 0644)" in problems_of({"config": file})


def test_a_private_file_may_hold_a_secret(tmp_path):
    file = written(tmp_path, "state: {storage: {redis: {password: hunter2}}}\n", 0o600)
    password = load({"config": file}, {}).settings.storage.redis.password
    assert password is not None
    assert password.reveal() == "hunter2"


def test_a_secret_shows_itself_nowhere_but_to_reveal():
    settings = load({}, {"STATESVC_STORAGE__REDIS__PASSWORD": "hunter2"}).settings
    assert "hunter2" not in f"{settings} {settings!r} {settings.storage.redis.password}"
    assert "hunter2" not in str(sources_module.as_plain(settings))


def test_a_secret_of_the_wrong_form_is_not_shown_in_the_error(tmp_path):
    text = problems_of({"config": written(tmp_path, "state: {storage: {redis: {password: 12345}}}\n")})
    assert "12345" not in text
    assert "storage.redis.password: [hidden] is not allowed" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state: {backend: memory, backend: sqlite}\n", "the key 'backend' is given twice"),
        ("state: [", "line 1"),
        ("state:\n\t- x\n", "line 2, column 1"),
        ("- a\n- b\n", "must be a mapping with the section 'state:'"),
        ("state: 5\n", "state: must be a section"),
        ("backend: memory\n", "backend: belongs below the section 'state:'"),
        ("state: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("state: {a: " + "[" * 3000 + "]" * 3000 + "}", "nested too deeply"),
        ("state: {backend: \0}\n", "special characters are not allowed"),
        ("state: {since: 2024-13-45}\n", "line 1, column 16: cannot be read as timestamp"),
        ("state:\n  b: 0b_\n", "line 2, column 6: cannot be read as int"),
        ("state: {a: !!int ''}\n", "line 1, column 12: cannot be read as int"),
        ("state: {a: " + "1" * 5000 + "}\n", "line 1, column 12: cannot be read as int"),
        ("state: {limits: {clients: 0x" + "f" * 5000 + "}}\n", "line 1, column 27: cannot be read as int"),
        ("state: {a: !!float x}\n", "line 1, column 12: cannot be read as float"),
        ("state:\n  a: " + "1:" * 400 + "1.5\n", "line 2, column 6: cannot be read as float"),
        ("state: {a: !!bool x}\n", "line 1, column 12: cannot be read as bool"),
        ("state: {a: !!timestamp x}\n", "line 1, column 12: cannot be read as timestamp"),
        ('state: {socket: "\\ud800"}\n', "line 1, column 17: cannot be read as str"),
        ("state: {a: &a [*a]}\n", "line 1, column 12: stands for more than 100000 values"),
        ("# " + "x" * (1 << 20) + "\n", "longer than the 1048576 bytes"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_in_one_line_with_its_place(tmp_path, text, expected):
    file = written(tmp_path, text)
    problems = problems_of({"config": file})
    assert expected in problems
    assert str(file) in problems
    assert len(problems.splitlines()) == 1


@pytest.mark.parametrize("line", ["[{0},{0},{0},{0}]", "{{<<: [{0},{0},{0},{0}]}}"])
def test_aliases_that_stand_for_more_than_any_memory_holds_are_refused(tmp_path, line):
    lines = ["a0: &a0 {x: 1}"] + [f"a{n + 1}: &a{n + 1} " + line.format(f"*a{n}") for n in range(40)]
    file = written(tmp_path, "\n".join([*lines, "state: {backend: *a40}\n"]))
    assert "stands for more than 100000 values" in problems_of({"config": file})


@pytest.mark.parametrize(
    "section", ["{since: 2024-13-45}", "!theirs {a: 1}", "{a: 1, a: 2}", "&a [*a]", "!!int x", '"\\ud800"', "0b_"]
)
def test_sections_of_others_are_not_looked_at(tmp_path, section):
    file = written(tmp_path, f"server: {section}\nstate: {{backend: memory}}\n")
    assert load({"config": file}, {}).settings.backend == "memory"


def test_what_is_merged_into_the_top_counts(tmp_path):
    file = written(tmp_path, "base: &base {state: {backend: memory}}\n<<: *base\n")
    assert load({"config": file}, {}).settings.backend == "memory"


def test_an_alias_is_as_good_as_what_it_stands_for(tmp_path):
    file = written(tmp_path, "few: &few {clients: 7}\nstate: {limits: {<<: *few, depth: 9}}\n")
    limits = load({"config": file}, {}).settings.limits
    assert (limits.clients, limits.depth) == (7, 9)


def test_a_pipe_is_read_to_its_end_and_one_through_which_nothing_comes_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert problems_of({"config": pipe}) == f"{pipe}: a pipe through which nothing came"
    reading, writing = os.pipe()
    try:
        os.write(writing, b"state: {backend: memory}\n")
        os.close(writing)
        assert load({"config": f"/dev/fd/{reading}"}, {}).settings.backend == "memory"
    finally:
        os.close(reading)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "f.yml"
    file.write_bytes(b"\xff\xfe\x00state")
    assert "not a YAML file in UTF-8" in problems_of({"config": file})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    file = written(tmp_path, "", 0o000)
    with not_root():
        assert "cannot be read" in problems_of({"config": file})


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path):
    assert "cannot be read" in problems_of({"config": tmp_path})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"limits.record_bytes": (10 << 20) - 8191},
            "limits.record_bytes: 10477569 leaves less than the 8192 bytes that a reply adds to a record below limits.",
        ),
        (
            {"lifecycles": {"Job Two": {"A": ["B"]}}},
            "lifecycles: 'Job Two' cannot be the name of a kind; it takes 1 to 64 of a-z 0-9 _ . - and begins with a ",
        ),
        ({"lifecycles": {"9": {}}}, "lifecycles: '9' cannot be"),
        ({"lifecycles": {"x" * 65: {}}}, "cannot be the name of a kind"),
        ({"limits.list_default": 2000}, "limits.list_default: 2000 is above limits.list_limit"),
        ({"limits.list_examined": 10}, "limits.list_limit: 1000 is above limits.list_examined"),
        ({"socket": "/" + "x" * 106}, "socket: longer than the 106 bytes"),
        (
            {"storage.redis.password": "a", "storage.redis.password_file": "/b"},
            "storage.redis.password: given",
        ),
        (
            {"storage.redis.tls_ca_file": "/ca.pem"},
            "storage.redis.tls_ca_file: given while storage.redis.tls is off, so nothing would be encrypted; set it to",
        ),
        ({"storage.redis.tls_key_file": "/key.pem"}, "storage.redis.tls_key_file: given while storage.redis.tls is "),
        (
            {"storage.redis.endpoint": "db:x"},
            "storage.redis.endpoint: 'db:x' is not host:port; an IPv6 address goes in",
        ),
        ({"storage.redis.endpoint": "", "backend": "redis"}, "storage.redis.endpoint: empty; give host:port or the"),
        (
            {"storage.dynamodb.endpoint": "localhost:8000"},
            "storage.dynamodb.endpoint: not of the form http://host:port",
        ),
        (
            {"storage.dynamodb.table_name": "a/b", "backend": "dynamodb"},
            "storage.dynamodb.table_name: 'a/b' cannot be the name of a table; it takes 3 to 255 of A-Z a-z 0-9 _ . -",
        ),
        (
            {"storage.dynamodb.companion_table": "jo", "backend": "dynamodb"},
            "storage.dynamodb.companion_table: 'jo' can",
        ),
        ({"storage.dynamodb.region": "eu west", "backend": "dynamodb"}, "storage.dynamodb.region: 'eu west' cannot be"),
        ({"access.uids": ["no-such-user"]}, "access.uids: there is no user 'no-such-user' on this host"),
        ({"access.uids": ["a\0b"]}, "access.uids: there is no user 'a\\x00b' on this host"),
        ({"access.gids": ["no-such-group"]}, "access.gids: there is no group 'no-such-group' on this host"),
        ({"access.socket_group": "no-such"}, "access.socket_group: there is no group 'no-such' on this host"),
    ],
)
def test_values_that_cannot_work_together_are_refused(flags, expected):
    assert expected in problems_of(flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"limits.record_bytes": (10 << 20) - 8192},
        {"limits.frame_bytes": 64 << 10, "limits.record_bytes": 56 << 10},
        {"lifecycles": {"job": {"RUNNING": ["PAUSED"]}, "_my.own-kind2": {}, "x" * 64: {}}},
        {"storage.redis.endpoint": "", "storage.dynamodb.table_name": ""},
        {"storage.redis.endpoint": "/run/redis@1/redis.sock", "backend": "redis"},
        {"storage.dynamodb.table_name": "arn:aws:dynamodb:eu-west-1:1234:table/jobs", "backend": "dynamodb"},
    ],
)
def test_values_that_just_work_together_are_taken(flags):
    assert load(flags, {}).settings != Settings()


@pytest.mark.parametrize(
    "key",
    ["storage.redis.endpoint", "storage.redis.db", "storage.dynamodb.endpoint", "storage.dynamodb.region", "backend"],
)
def test_a_password_in_an_address_is_never_shown(key):
    flags = {"backend": "dynamodb", key: "redis://:hunter2@db:6379"}
    problems = problems_of(flags)
    assert problems.startswith(key)
    assert "hunter2" not in problems


def test_the_window_of_marks_is_no_key_any_more():
    assert "limits.marks_seconds: unknown key" in problems_of({}, {"STATESVC_LIMITS__MARKS_SECONDS": "60"})


def test_every_limit_a_client_is_told_is_a_key_of_the_configuration():
    assert set(wire.Limits.__struct_fields__) <= set(Settings().limits.__struct_fields__)
