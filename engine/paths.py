"""Where Baton keeps its files on each system, and how it starts another process of its own.

Folders are named here and made by whoever writes into them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs

from engine.config import MODELS_FOLDER
from engine.errors import UserError
from engine.files import user_path
from engine.settings_file import SettingsFile

_NAME = "baton"


def cache_dir() -> Path:
    """Files that can be fetched or computed again."""
    return platformdirs.user_cache_path(_NAME, appauthor=False)


def config_dir() -> Path:
    """Settings, keys and the list of trusted computers."""
    return platformdirs.user_config_path(_NAME, appauthor=False)


def data_dir() -> Path:
    """Files that belong to the user and cannot be fetched again."""
    return platformdirs.user_data_path(_NAME, appauthor=False)


def log_dir() -> Path:
    return platformdirs.user_log_path(_NAME, appauthor=False)


def node_log() -> Path:
    """The log of the node itself; those of its engines are beside it."""
    return log_dir() / "node.log"


def service_log() -> Path:
    """What a node that the system started says where the system keeps no log of its own (macOS)."""
    return log_dir() / "service.log"


def installer_log() -> Path:
    """What a node says that the installer started, beside the environment which that made."""
    return Path(sys.prefix).parent / "node.log"


def models_dir() -> Path:
    """The model library: `$BATON_MODELS` where it is set, else as the settings have it, else a folder in the cache."""
    given = os.environ.get("BATON_MODELS") or _chosen_models_dir()
    return user_path(given) if given else cache_dir() / "models"


def _chosen_models_dir() -> str:
    """As the settings have it; nothing where that is no folder that there could be."""
    try:
        chosen: str = MODELS_FOLDER.from_plain(
            SettingsFile(settings_file()).read()[0].get(MODELS_FOLDER.name)
        )
        return chosen
    except UserError:
        return ""


def scratch_dir() -> Path:
    """Where folders are kept that last as long as one run."""
    return cache_dir() / "scratch"


def node_dir() -> Path:
    """What the running node tells other processes of this user: where it is, and its token."""
    return cache_dir() / "node"


def peers_file() -> Path:
    """The computers that this one is paired with."""
    return config_dir() / "peers.json"


def settings_file() -> Path:
    """The settings that a user has made; engine/config.py says which there are."""
    return config_dir() / "settings.json"


def updates_file() -> Path:
    """Is there where a person has allowed paired computers to update this one."""
    return config_dir() / "allow-updates"


def identity_dir(given: str | None = None) -> Path:
    """Where this computer's key, certificate and trusted certificates are kept: `given`, or with the settings."""
    return user_path(given) if given else config_dir() / "identity"


def own_command() -> list[str]:
    """The words that start Baton's command line in a new process; a sub-command and its flags follow them.

    In a bundle `sys.executable` is the app itself, which reads the sub-command before anything else; elsewhere it is
    a Python interpreter that has to be told what to run, and that no file of the folder where it is started is a module
    of ours or of Python's (-P).
    """
    if is_bundled():
        return [sys.executable]
    return [sys.executable, "-P", "-m", "engine"]


def is_bundled() -> bool:
    """Whether this is the app's bundle, whose executable is no Python interpreter."""
    return bool(getattr(sys, "frozen", False)) or "python" not in Path(sys.executable).name.lower()
