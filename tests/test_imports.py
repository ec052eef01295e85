"""What may be imported where, seen at run time: import-linter reads the code, this runs it without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

WITHOUT_TORCH = [
    "engine.batching.chunks",
    "engine.batching.journal",
    "engine.batching.packing",
    "engine.batching.request",
    "engine.batching.scheduler",
    "engine.batching.slot",
    "engine.cache.blocks",
    "engine.cache.spec",
    "engine.config",
    "engine.errors",
    "engine.gguf.reader",
    "engine.gguf.types",
    "engine.handoff.courier",
    "engine.handoff.failure",
    "engine.handoff.prefill_client",
    "engine.handoff.prefill_worker",
    "engine.handoff.route",
    "engine.handoff.shared",
    "engine.handoff.transport",
    "engine.models.spec",
    "engine.link.privileged",
    "engine.node.trust.identity",
    "engine.node.endpoint",
    "engine.node.link_doctor",
    "engine.node.models.library",
    "engine.node.running",
    "engine.paths",
    "engine.repeats",
    "engine.server.app",
    "engine.server.run",
    "engine.tokenizer",
    "engine.wire.client",
    "engine.wire.codec",
    "engine.wire.messages",
    "engine.wire.worker",
]

# Slow to import, each by tens of milliseconds or more: commands that only ask something must do without.
HEAVY = {
    "gguf",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "jinja2",
    "numpy",
    "prometheus_client",
    "starlette",
    "tokenizers",
    "torch",
    "tqdm",
}
HEAVY |= {"transformers", "uvicorn", "cryptography", "xllamacpp"}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_what_must_not_need_torch_is_imported_where_torch_cannot_be() -> None:
    blocked = "import sys; sys.modules['torch'] = None\n"
    result = run_python(blocked + "\n".join(f"import {module}" for module in WITHOUT_TORCH))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["status", "--port", "1"],
        ["serve", "--help"],
        ["demo", "--help"],
        ["models", "list"],
        ["config", "--help"],
        ["bench", "--help"],
    ],
    ids=" ".join,
)
def test_commands_that_only_ask_import_nothing_heavy(words: list[str]) -> None:
    result = run_python(
        "import json, sys\n"
        "from engine.cli.main import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    imported = {name.partition(".")[0] for name in json.loads(result.stderr.splitlines()[-1])}
    assert not imported & HEAVY


def test_the_app_reaches_the_engine_through_a_sub_command() -> None:
    result = run_python("import app.__main__, sys; print('engine' in sys.modules)")
    assert result.stdout == "False\n"
