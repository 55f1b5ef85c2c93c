"""Settings: who sets them, what a project may set, and that a mistake is named with its place and never a key."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from perdure.cli import cli
from perdure.commands.configuration import Configuration, load
from perdure.commands.settings import SETTINGS
from perdure.errors import UsageError

KEY = "sk-proj-" + "aB3" * 12


class Place:
    """A user with settings, and a directory of a project."""

    def __init__(self, path: Path) -> None:
        self.home = path / "home"
        self.project = path / "home" / "shop"
        self.own = self.home / ".config" / "perdure" / "config.toml"
        self.own.parent.mkdir(parents=True)
        (self.project / "deep").mkdir(parents=True)
        self.file = self.project / "perdure.toml"

    def load(self, **environment: str) -> Configuration:
        return load({"HOME": str(self.home), **environment}, str(self.project / "deep"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_without_any_file_everything_has_its_default(place: Place) -> None:
    found = place.load()
    assert {name: each.source for name, each in found.values.items()} == dict.fromkeys(SETTINGS, "default")
    assert (found["store"], found["session"], found["allow"]) == (".perdure/store.db", "main", ())


def test_the_environment_goes_before_the_project_and_the_project_before_the_user(place: Place) -> None:
    place.own.write_text('model = "openai:own"\nsession = "own"\ntimeout = 5')
    place.file.write_text('# of the project\nmodel = "openai:project"\nsession = "project"')
    found = place.load(PERDURE_MODEL="openai:variable")
    assert [(found[name], found.values[name].source) for name in ("model", "session", "timeout")] == [
        ("openai:variable", "PERDURE_MODEL"),
        ("project", f"{place.file}:3"),
        (5.0, f"{place.own}:3"),
    ]


def test_a_path_is_meant_from_where_the_projects_file_is(place: Place) -> None:
    place.file.write_text('store = "kept/work.db"\ndirectory = "src"')
    found = place.load()
    assert found["store"] == str(place.project / "kept" / "work.db")
    assert found["directory"] == str(place.project / "src")


def test_a_project_is_looked_for_up_to_its_repository(place: Place) -> None:
    place.file.write_text('session = "project"')
    (place.project / "deep" / ".git").mkdir()
    assert place.load()["session"] == "main"


@pytest.mark.parametrize(
    "line",
    [
        'tools = ["evil:run"]',
        'allow = ["bash"]',
        'store = "../../elsewhere.db"',
        'store = "postgresql://elsewhere/db"',
        'directory = "/"',
        'model = "https://elsewhere/v1#big"',
        'trust = ["/"]',
    ],
)
def test_a_project_cannot_run_code_widen_permissions_or_name_a_server(place: Place, line: str) -> None:
    place.file.write_text(line)
    found = place.load()
    (withheld,) = found.withheld
    assert found.values[withheld.name].source == "default"
    with pytest.raises(UsageError, match=re.escape(f"{place.file}:1 sets {withheld.name}")):
        found.refuse_withheld()


def test_what_a_project_may_not_is_open_to_it_in_a_directory_that_the_user_trusts(place: Place) -> None:
    place.own.write_text('trust = ["~/nowhere", "' + str(place.project) + '"]')
    place.file.write_text('tools = ["shop:pay"]\nallow = ["bash", "read"]\nmodel = "http://127.0.0.1:9/v1#x"')
    found = place.load()
    assert found.withheld == []
    assert (found["tools"], found["allow"], found["model"]) == (("shop:pay",), ("bash",), "http://127.0.0.1:9/v1#x")


def test_trust_is_only_the_users_to_give(place: Place) -> None:
    place.own.write_text(f'trust = ["{place.project}"]')
    place.file.write_text('trust = ["/"]')
    assert place.load().withheld[0].name == "trust"
    assert place.load(PERDURE_TRUST="/")["trust"] == (str(place.project),)
    assert place.load(PERDURE_TRUST="/").strange == ["PERDURE_TRUST"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_file_of_somebody_else_does_not_count(place: Place) -> None:
    place.file.write_text('session = "theirs"')
    os.chown(place.file, 65534, 65534)
    found = place.load()
    assert found["session"] == "main"
    assert "belongs to user 65534" in found.withheld[0].why


def test_a_file_that_anybody_may_change_names_no_code(place: Place) -> None:
    place.own.write_text('tools = ["shop:pay"]')
    place.own.chmod(0o666)
    with pytest.raises(UsageError, match=r"anybody may change .*chmod o-w"):
        place.load()


@pytest.mark.parametrize(
    "text, says",
    [
        ('\nmodle = "openai:x"', r"config\.toml:2: there is no setting 'modle'; did you mean model\?"),
        ("zzz = 1", r"config\.toml:1: there is no setting 'zzz'; there are model, store"),
        ("[models]\nx = 1", r"config\.toml:1: there is no setting 'models'; did you mean model"),
        ("session = 'a'\ntimeout = 'soon'", r"config\.toml:2: timeout = 'soon': it must be a number of seconds"),
        ("timeout = true", "number of seconds"),
        ("timeout = nan", "number of seconds"),
        ("model = 5", "model = 5: it must be a text"),
        ("tools = 'shop:pay'", "it must be a list"),
        ("tools = ['shop']", "'shop' is no MODULE:NAME"),
        ("allow = ['rm']", "no tool 'rm' to allow; there are bash, write, edit"),
        ("model = ", r"config\.toml is no TOML: .*at end of document"),
        ("model = 'a'\nmodel = 'b'\nsession = 'c'", r"config\.toml is no TOML: .*line 2"),
    ],
)
def test_a_mistake_is_named_with_its_place(place: Place, text: str, says: str) -> None:
    place.own.write_text(text)
    with pytest.raises(UsageError, match=says):
        place.load()


@pytest.mark.parametrize(
    "text",
    [
        f"openai_api_key = '{KEY}'",
        f"model = '{KEY}'",
        f"x = 1\n[providers.openai]\nkey = '{KEY}'",
        f"tools = ['shop:{KEY}']",
        "model = '" + "0123456789abcdef" * 2 + "'",
        "api_token = 'short'",
    ],
)
def test_a_key_in_a_file_is_refused_and_not_repeated(place: Place, text: str) -> None:
    place.own.write_text(text)
    with pytest.raises(UsageError) as error:
        place.load()
    assert "sk-" not in str(error.value)
    assert KEY not in str(error.value)
    if text[0] != "x":
        assert "looks like a key" in str(error.value)
        assert "OPENAI_API_KEY" in str(error.value)


def test_a_key_in_a_variable_of_a_setting_is_refused_and_not_repeated(place: Place) -> None:
    with pytest.raises(UsageError, match="PERDURE_MODEL holds what looks like a key") as error:
        place.load(PERDURE_MODEL=KEY)
    assert KEY not in str(error.value)


def test_the_effective_settings_are_shown_with_their_sources_and_no_key(
    place: Place, of_nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_nobody.mkdir()
    (of_nobody / "config.toml").write_text('session = "own"')
    place.file.write_text('timeout = 9\ntools = ["shop:pay"]')
    monkeypatch.chdir(place.project)
    monkeypatch.setenv("PERDURE_MODEL", "demo:slow=0.1")
    monkeypatch.setenv("PERDURE_MODLE", "x")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plain = CliRunner().invoke(cli, ["config", "show"])
    assert plain.exit_code == 0
    assert re.search(r"^model +demo:slow=0.1 +PERDURE_MODEL$", plain.stdout, re.MULTILINE)
    assert re.search(rf"^session +own +{re.escape(str(of_nobody / 'config.toml'))}:1$", plain.stdout, re.MULTILINE)
    assert re.search(rf"^timeout +9.0 +{re.escape(str(place.file))}:1$", plain.stdout, re.MULTILINE)
    assert re.search(r"^store +.perdure/store.db +default$", plain.stdout, re.MULTILINE)
    assert f"{place.file}:2 sets tools, which counts only in a directory that you trust" in plain.stdout
    assert "PERDURE_MODLE means nothing here; did you mean PERDURE_MODEL?" in plain.stdout
    assert "OPENAI_API_KEY is set" in plain.stdout
    assert KEY not in plain.output
    found = msgspec.json.decode(CliRunner().invoke(cli, ["config", "show", "--json"]).stdout)
    assert found["settings"]["model"] == {"value": "demo:slow=0.1", "source": "PERDURE_MODEL"}
    assert found["keys"] == ["OPENAI_API_KEY"]


def test_work_does_not_start_without_what_the_project_wants(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.file.write_text('allow = ["bash"]')
    monkeypatch.chdir(place.project)
    done = CliRunner().invoke(cli, ["run", "Hello"])
    assert done.exit_code == 2
    assert f'trust = ["{place.project}"]' in done.stderr
    assert sorted(os.listdir(place.project)) == ["deep", "perdure.toml"]


def test_the_store_of_a_project_is_beside_its_file_wherever_somebody_works(place: Place) -> None:
    place.file.write_text('session = "project"')
    found = place.load()
    assert found.values["store"].value == str(place.project / ".perdure" / "store.db")
    assert found.values["store"].source == f"default, beside {place.file}"
    assert found.given("store") is None
    assert place.load(PERDURE_STORE="own.db")["store"] == "own.db"
    here = load({"HOME": str(place.home)}, str(place.project))
    assert (here["store"], here.values["store"].source) == (".perdure/store.db", "default")


@pytest.mark.parametrize("line", ['timeout = "5"', "timeout = true", "timeout = [5]", "model = 5", 'allow = "bash"'])
def test_a_value_of_the_wrong_kind_is_refused_with_its_line(place: Place, line: str) -> None:
    place.own.write_text(line)
    with pytest.raises(UsageError, match=re.escape(f"{place.own}:1: {line.split()[0]} = ")):
        place.load()


def test_a_time_in_a_variable_is_a_number(place: Place) -> None:
    assert place.load(PERDURE_TIMEOUT="5")["timeout"] == 5.0
    for text in ("soon", "nan", "-1"):
        with pytest.raises(UsageError, match="it must be a number of seconds above 0"):
            place.load(PERDURE_TIMEOUT=text)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_file_of_settings_that_is_no_file_is_named(place: Place, make) -> None:
    make(place.file)
    with pytest.raises(UsageError, match=f"{re.escape(str(place.file))} is a (directory|pipe)"):
        place.load()


@pytest.mark.parametrize("command", [("ls",), ("run", "Hello", "--store", "memory:")])
def test_a_variable_that_means_nothing_is_named_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_STOER", "kept.db")
    said = CliRunner().invoke(cli, command).stderr
    assert "PERDURE_STOER means nothing here; did you mean PERDURE_STORE?" in said
