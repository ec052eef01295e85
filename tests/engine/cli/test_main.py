"""The command line's frame: which command runs, how its errors look, what its exit status is."""

from __future__ import annotations

import signal
import subprocess
import sys
import types

import pytest

from engine.cli import main as cli
from engine.errors import HostError, PeerLost, UserError
from engine.paths import own_command

VISIBLE = [name for name, command in cli.COMMANDS.items() if not command.hidden]


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch):
    """Runs a command `probe` that does what it is given."""

    def run(action) -> int:
        module = types.ModuleType("probe")
        module.EXAMPLE = "  baton probe\n"
        module.add_arguments = lambda parser: parser.add_argument("--number", type=int)
        module.run = action
        monkeypatch.setitem(sys.modules, "probe", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command(module="probe", help="try something"))
        return cli.main(["probe"])

    return run


def raising(error: BaseException):
    def action(args):
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status"),
    [(UserError("do it so"), 2), (HostError("no room"), 1), (PeerLost("gone"), 1)],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_sentence_and_a_status(run_command, capsys, error: Exception, status: int) -> None:
    assert run_command(raising(error)) == status
    assert capsys.readouterr().err == f"baton: {error}\n"


def test_ctrl_c_is_quiet(run_command, capsys) -> None:
    assert run_command(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "closed terminal"])
def test_a_signal_to_end_unwinds_what_runs(run_command, number) -> None:
    unwound = []

    def wait_for_the_end(args):
        try:
            signal.raise_signal(number)
        finally:
            unwound.append(True)

    inherited = signal.signal(number, signal.SIG_DFL)
    try:
        assert run_command(wait_for_the_end) == 128 + number
        assert unwound
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)


@pytest.mark.usefixtures("cold_starts")
def test_a_reader_that_has_gone_is_no_error() -> None:
    with subprocess.Popen(
        [*own_command(), "models", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


@pytest.mark.usefixtures("cold_starts")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*own_command(), "models", "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "baton: the disk is full: make room, and run the same command again\n"


def test_closed_output_is_no_error() -> None:
    script = "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-c", script, *own_command(), "models", "list"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_of_ours_is_owned_up_to_without_a_traceback(
    run_command, capsys, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr("engine.paths.log_dir", lambda: tmp_path / "logs")
    monkeypatch.setattr(cli, "_forget_stdout", lambda: None)
    assert run_command(raising(KeyError("speed"))) == 1
    file = tmp_path / "logs" / "mistakes.log"
    assert capsys.readouterr().err == (
        f"baton: a mistake of Baton's own (KeyError: 'speed'); please report it, with the end of {file}\n"
    )
    assert "Traceback" in file.read_text()
    file.unlink()
    file.mkdir()
    assert run_command(raising(KeyError("speed"))) == 1
    assert (
        capsys.readouterr().err == "baton: a mistake of Baton's own (KeyError: 'speed'); please report it\n"
    )


def test_without_a_command_the_help_is_shown(capsys) -> None:
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n    {name}" in printed for name in VISIBLE)
    assert "courier" not in printed


def test_an_unknown_command_is_refused(capsys) -> None:
    assert cli.main(["juggle"]) == 2
    assert "juggle" in capsys.readouterr().err


@pytest.mark.parametrize("name", VISIBLE)
def test_every_command_has_help_with_an_example(capsys, name: str) -> None:
    assert cli.main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: baton {name}")
    assert f"baton {name}" in printed.partition("examples:")[2]


def test_a_setting_out_of_range_is_one_sentence(capsys) -> None:
    assert cli.main(["serve", "--slots", "0"]) == 2
    assert capsys.readouterr().err == "baton: --slots 0: at least 1 is needed here\n"
