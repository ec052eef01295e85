"""What holds of a setting: flag before environment before file before default; and what may be made of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from engine import config
from engine.config import NODE_SETTINGS, Needs
from engine.errors import InvalidRequest
from engine.node.settings import NodeSettings, Source, setting_named
from engine.node.trust.secrets import Secrets
from engine.settings_file import SettingsFile

KEY = "a-key-of-some-length"


class Home:
    """A computer's file and secrets; `open` is a start of its node."""

    def __init__(self, folder: Path) -> None:
        self.file = SettingsFile(folder / "settings.json")
        self.secrets = Secrets(folder / "identity", use_keyring=False)

    def write(self, **values: Any) -> None:
        self.file.path.write_text(json.dumps(values))

    def open(self, *, environ: dict[str, str] | None = None, **flags: Any) -> NodeSettings:
        settings = NodeSettings(self.file, flags=flags, environ=environ or {})
        settings.recall(self.secrets)
        return settings

    def change(self, settings: NodeSettings, **changes: Any) -> None:
        settings.keep(settings.check(changes), self.secrets)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def entry(settings: NodeSettings, name: str) -> dict[str, Any]:
    return next(one for one in settings.snapshot()["settings"] if one["name"] == name)


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(home: Home) -> None:
    home.write(ctx=512, models="/from/file", slots=3)
    settings = home.open(environ={"BATON_MODELS": "/from/environment"}, slots=7, route=None)
    found = {
        setting.name: (settings.value(setting), settings.source(setting))
        for setting in (config.SLOTS, config.MODELS_FOLDER, config.CTX, config.ROUTE)
    }
    assert found == {
        "slots": (7, Source.FLAG),
        "models": ("/from/environment", Source.ENVIRONMENT),
        "ctx": (512, Source.FILE),
        "route": ("auto", Source.DEFAULT),
    }


def test_a_change_holds_at_once_and_after_the_next_start(home: Home) -> None:
    settings = home.open()
    home.change(settings, ctx=8192, name="studio", threads=3)
    home.change(settings, threads=None)
    for one in (settings, home.open()):
        assert one.value(config.CTX) == 8192 and one.value(config.NODE_NAME) == "studio"
        assert one.value(config.THREADS) is None and one.source(config.THREADS) is Source.DEFAULT


def test_what_a_flag_says_is_kept_for_a_start_without_it(home: Home) -> None:
    settings = home.open(slots=7)
    home.change(settings, slots=2)
    assert settings.value(config.SLOTS) == 7
    assert (entry(settings, "slots")["value"], entry(settings, "slots")["kept"]) == (7, 2)
    assert home.open().value(config.SLOTS) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ctx": 8}, "ctx 8: at least 16 is needed here"),
        ({"ctx": "512"}, "ctx: a whole number is needed here"),
        ({"ctx": 512.0}, "ctx: a whole number is needed here"),
        ({"ctx": True}, "ctx: a whole number is needed here"),
        ({"ctx": 10**400}, "ctx: a whole number is needed here"),
        ({"name": 7}, "name: a text is needed here"),
        ({"name": ""}, "name is empty: it takes NAME"),
        ({"route": "sometimes"}, "route sometimes: choose one of auto, always, never"),
        ({"models": "models"}, "models models: a whole path is needed"),
        ({"api_key": "short"}, "api_key: a key has 8 to 512"),
        ({"colour": "red"}, "there is no setting colour; there are: name, "),
        ({"identity": "/elsewhere"}, "there is no setting identity"),
        ({"host": "0.0.0.0"}, "host 0.0.0.0 opens the endpoint to the network"),
    ],
)
def test_one_wrong_value_changes_nothing_and_is_named(
    home: Home, changes: dict[str, Any], sentence: str
) -> None:
    settings = home.open()
    with pytest.raises(InvalidRequest) as refused:
        home.change(settings, slots=2, **changes)
    assert sentence in str(refused.value)
    assert refused.value.param == next(iter(changes))
    assert settings.value(config.SLOTS) == config.SLOTS.default
    assert not home.file.path.exists()


def test_a_models_folder_is_chosen_only_where_models_can_be_kept(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    settings = home.open()
    with pytest.raises(InvalidRequest, match="is a file, and a folder is needed; choose another") as refused:
        home.change(settings, models=str(file / "models"))
    assert refused.value.param == "models" and settings.value(config.MODELS_FOLDER) is None
    home.change(settings, models=str(tmp_path / "later"))
    assert settings.value(config.MODELS_FOLDER) == str(tmp_path / "later")


def test_the_endpoint_is_opened_to_the_network_with_a_key_only(home: Home) -> None:
    settings = home.open()
    home.change(settings, host="0.0.0.0", api_key=KEY)
    assert (settings.host, settings.api_key) == ("0.0.0.0", KEY)
    with pytest.raises(InvalidRequest, match="opens the endpoint to the network") as refused:
        home.change(settings, api_key=None)
    assert refused.value.param == "api_key"
    home.change(settings, api_key=None, host=None)
    assert (settings.host, settings.api_key) == ("127.0.0.1", None)


def test_a_file_that_opens_it_without_a_key_does_not(home: Home) -> None:
    home.write(host="0.0.0.0")
    settings = home.open()
    assert settings.host == "127.0.0.1"
    assert "answers this computer alone" in " ".join(settings.faults())
    assert home.open(environ={"BATON_API_KEY": KEY}).host == "0.0.0.0"
    assert home.open(host="0.0.0.0").host == "0.0.0.0"  # the node refuses that itself


def test_a_kept_host_at_which_nobody_can_listen_keeps_no_node_from_starting(home: Home) -> None:
    """A documentation address, as that of a cable that is out."""
    home.write(host="203.0.113.7", port=0)
    home.change(home.open(), api_key=KEY)
    settings = home.open()
    settings.look_at_address()
    assert settings.host == "127.0.0.1"
    (fault,) = settings.faults()
    assert "cannot listen at 203.0.113.7: this computer does not have that address" in fault
    assert "baton config set host" in fault
    home.change(settings, host="0.0.0.0")
    assert settings.faults() == []
    flagged = home.open(host="203.0.113.7")
    flagged.look_at_address()
    assert flagged.host == "203.0.113.7"


def test_a_kept_port_that_another_program_has_keeps_no_node_from_starting(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        home.write(port=taken)
        settings = home.open()
        settings.look_at_address()
        assert settings.port == 0
        (fault,) = settings.faults()
        assert f"another port than {taken}" in fault and "another program listens" in fault
        flagged = home.open(port=taken)
        flagged.look_at_address()
        assert flagged.port == taken  # whoever asks for it hears that it cannot be
        home.change(settings, port=None)
        assert (settings.port, settings.faults()) == (config.PORT.default, [])


def test_what_holds_in_place_of_a_value_that_is_not_followed_is_said(home: Home) -> None:
    home.write(name=5, ctx="many")
    first, second = home.open().faults()
    assert first.endswith("; what Baton chooses holds") and second.endswith("; 4096 holds")


def test_a_key_is_kept_with_the_secrets_and_shown_nowhere(home: Home) -> None:
    settings = home.open()
    home.change(settings, api_key=KEY, slots=2)
    assert home.open().api_key == KEY
    assert KEY not in home.file.path.read_text()
    assert KEY not in json.dumps(settings.snapshot())
    assert entry(settings, "api_key")["is_set"]
    home.change(settings, api_key=None)
    assert home.open().api_key is None and not entry(settings, "api_key")["is_set"]


def test_what_of_a_file_cannot_be_followed_is_said_and_left_there(home: Home) -> None:
    home.write(ctx=8, colour="red", api_key=KEY, slots=2)
    settings = home.open()
    assert (settings.value(config.CTX), settings.value(config.SLOTS)) == (config.CTX.default, 2)
    assert settings.api_key is None
    said = " ".join(settings.faults())
    assert "ctx 8: at least 16" in said and "colour is no setting" in said and "api_key is a secret" in said
    assert KEY not in said
    home.change(settings, ctx=512)
    assert "ctx" not in " ".join(settings.faults())
    assert json.loads(home.file.path.read_text())["colour"] == "red"


def test_a_damaged_file_is_no_end_and_is_said(home: Home) -> None:
    home.file.path.write_text("{")
    settings = home.open()
    assert settings.value(config.CTX) == config.CTX.default
    assert "damaged" in settings.faults()[0]
    home.change(settings, ctx=512)
    assert settings.faults() == []


@pytest.mark.parametrize("setting", NODE_SETTINGS, ids=lambda setting: setting.name)
def test_each_says_what_a_window_needs(home: Home, setting: config.Setting) -> None:
    found = entry(home.open(), setting.name)
    assert found["help"] and found["group"] and found["needs"] in list(Needs)
    assert (found["flag"] is None) == (not setting.has_flag)
    assert found["default"] is None or setting.from_plain(found["default"]) == setting.default


def test_a_name_may_be_written_as_in_a_flag() -> None:
    assert setting_named("node-port") is config.NODE_LISTEN_PORT
