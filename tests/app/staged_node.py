"""A node that says what a scene has it say: two computers as `two_computers` tells of them, and no process at all."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from app.node.client import Address, NodeClient
from app.node.faults import AppError, NodeGone
from engine.node.settings import NodeSettings
from engine.settings_file import SettingsFile
from tests.app.two_computers import GB, MODEL, SPARK, engine, parts_of

ENDPOINT = "http://127.0.0.1:7117"
SMALL = "smollm2-135m"
_MB = 1_000_000

# What a stream says before it waits for more; after END it is over.
Items = list[Any]
END = object()

Answer = Any | Callable[[dict[str, Any]], Any]


class StagedClient(NodeClient):
    """Answers out of `answers`, by method and path, and streams out of `streams`, by path; else nothing is said.

    An answer that can be called is given the request's body or query; one that is an error is raised.
    """

    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__(lambda: None)
        self.parts = parts
        self.is_there = True
        self.answers: dict[tuple[str, str], Answer] = {
            ("GET", "/models"): library(),
            ("GET", "/models/catalogue"): catalogue(),
            ("GET", f"/models/{MODEL}"): look_into(MODEL),
            ("GET", "/settings/memory"): memory(),
            ("GET", "/slots"): slots(),
            ("POST", "/tokenize"): {"tokens": []},
        }
        self.streams: dict[str, Items] = {}
        self._address = Address(pid=1, port=1, token="", endpoint=ENDPOINT)

    def look(self) -> bool:
        return self.is_there

    async def _answer(self, method: str, url: str, **more: Any) -> Any:
        if not self.is_there:
            raise NodeGone("Baton's node on this computer does not answer.")
        path = url.removeprefix(ENDPOINT).removeprefix("http://127.0.0.1:1")
        answer = self.answers.get((method, path), {})
        told = answer(more.get("json") or more.get("params") or {}) if callable(answer) else answer
        if isinstance(told, AppError):
            raise told
        return copy.deepcopy(told)

    async def _events(
        self, url: str, headers: dict[str, str]
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        path = url.removeprefix(ENDPOINT).removeprefix("http://127.0.0.1:1").partition("?")[0]
        items = [("state", self.parts)] if url == "http://127.0.0.1:1/events" else self.streams.get(path, [])
        async for item in _said(items):
            yield item

    async def lines(
        self, path: str, body: dict[str, Any] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        async for item in _said(self.streams.get(path, [])):
            yield item

    async def chat(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async for item in _said(self.streams.get("/v1/chat/completions", [])):
            yield item


async def _said(items: Items) -> AsyncGenerator[Any, None]:
    for item in items:
        if item is END:
            return
        if isinstance(item, AppError):
            raise item
        yield copy.deepcopy(item)
    await asyncio.Event().wait()


def staged_parts(folder: Path) -> dict[str, Any]:
    """All that a node tells: a Mac Studio and a DGX Spark, paired, joined, with models."""
    told = parts_of()
    return {
        **told,
        "node": {
            **told["node"],
            "endpoint": ENDPOINT,
            "fingerprint": "4be19d7730c25fa8" * 4,
            "logs": "/Users/you/Library/Logs/baton",
            "pid": 4242,
        },
        "computer": {
            "system": "darwin",
            "processor": "Apple M2 Ultra",
            "n_cores": 24,
            "memory_bytes": 192 * GB,
            "gpu": "Apple M2 Ultra",
            "shares_memory": True,
            "gpu_limit_bytes": 144 * GB,
            "raise_gpu_limit": f"sudo sysctl iogpu.wired_limit_mb={168 << 10}",
        },
        "discovery": {
            "name": "studio",
            "addresses": ["10.77.3.1", "192.168.1.20"],
            "interfaces": [
                {"name": "en0", "family": "IPv4", "fault": ""},
                {"name": "en7", "family": "IPv4", "fault": ""},
            ],
            "found": [],
            "twins": [],
            "manual": [],
        },
        "pairing": {"offer": None, "note": "", "wait_s": 0.0},
        "permission": {"state": "not_applicable", "sentence": "", "steps": [], "settings_url": None},
        "wake": {"can_wake": [SPARK]},
        "models": {"folder": "/Users/you/Library/Caches/baton/models", **library()["here"]},
        "copies": [],
        "downloads": [],
        "engines": [engine()],
        "settings": settings(folder),
    }


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """As the node declares its settings, with some changed."""
    made = NodeSettings(SettingsFile(folder / "settings.json"), environ={})
    told = {**made.snapshot(), "is_reloading": False, "reload_fault": ""}
    told["file"] = "/Users/you/Library/Application Support/baton/settings.json"
    for one in told["settings"]:
        if one["name"] == "name":
            one["value"] = "studio"
        if one["name"] in changes:
            one.update({"source": "file", **changes[one["name"]]})
    return told


def model(
    name: str, architecture: str, n_params: float, quantization: str, size_gb: float, **more: Any
) -> dict[str, Any]:
    size = int(size_gb * 1000) * _MB
    return {
        "id": name,
        "files": [f"{name}.gguf"],
        "path": f"/Users/you/Library/Caches/baton/models/{name}.gguf",
        "size_bytes": size,
        "is_link": False,
        "problem": "",
        "title": name,
        "architecture": architecture,
        "n_params": int(n_params),
        "n_ctx_train": 40_960,
        "digest": None,
        "program": "",
        "quantization": quantization,
        "needed_bytes": 0 if "problem" in more else int(size * 1.12) + 900 * _MB,
        "kv_bytes_per_token": 114_688,
        **more,
    }


def library() -> dict[str, Any]:
    """The models of both, as `/models` tells of them."""
    unknown = "the architecture 'mamba2' is not known to Baton (known: gemma3, llama, qwen2, qwen3)"
    small = model(SMALL, "llama", 135e6, "Q4_1", 0.098, digest="1" * 64, n_ctx_train=8192)
    main = model(MODEL, "qwen3", 27.4e9, "Q4_K_XL", 17.6, digest="2" * 64, n_ctx_train=262_144)
    large = model(
        "Llama-3.3-70B-Instruct-Q4_K_M", "llama", 70.6e9, "Q4_K_M", 42.5, n_ctx_train=131_072, digest="3" * 64
    )
    here = [
        main,
        small,
        model("Qwen3-14B-Q4_K_M", "qwen3", 14.8e9, "Q4_K_M", 9.0, digest="4" * 64),
        model("Qwen3-32B-Q4_K_M", "qwen3", 32.8e9, "Q4_K_M", 19.8, program="LM Studio"),
        large,
        model("gemma3:4b", "gemma3", 3.9e9, "Q4_K_M", 3.3, program="Ollama", n_ctx_train=131_072),
        model(
            "mamba2-2.7b-Q8_0",
            "mamba2",
            0,
            "Q8_0",
            2.9,
            program="Hugging Face",
            problem=unknown,
            n_ctx_train=0,
        ),
    ]
    there = [main, small, large, model("Llama-3.1-405B-Instruct-Q4_K_M", "llama", 405.9e9, "Q4_K_M", 243.0)]
    return {
        "here": {
            "folder": "/Users/you/Library/Caches/baton/models",
            "models": here,
            "unfinished": [],
            "notes": [],
            "memory": {"total_bytes": 192 * GB, "free_bytes": 118 * GB},
        },
        "peers": [
            {
                "node_id": SPARK,
                "name": "spark",
                "models": there,
                "problem": "",
                "memory": {"total_bytes": 128 * GB, "free_bytes": 93 * GB},
            }
        ],
    }


def catalogue() -> list[dict[str, Any]]:
    """As `/models/catalogue` has it, with one that is here."""

    def entry(name: str, title: str, architecture: str, quantization: str, size: int) -> dict[str, Any]:
        return {
            "name": name,
            "title": title,
            "architecture": architecture,
            "quantization": quantization,
            "licence": "Gemma" if architecture == "gemma3" else "Apache-2.0",
            "size_bytes": size,
            "here": name == SMALL,
        }

    return [
        entry(SMALL, "SmolLM2 135M Instruct", "llama", "Q4_1", 98_362_432),
        entry("qwen2.5-coder-0.5b", "Qwen2.5 Coder 0.5B Instruct", "qwen2", "Q4_K_M", 491_400_064),
        entry("qwen2.5-coder-1.5b", "Qwen2.5 Coder 1.5B Instruct", "qwen2", "Q4_K_M", 1_117_320_768),
        entry("gemma3-270m", "Gemma 3 270M Instruct", "gemma3", "Q4_K_M", 253_115_904),
    ]


def look_into(name: str) -> dict[str, Any]:
    """As `/models/NAME` tells of one file."""
    return {
        "id": name,
        "program": "",
        "problem": "",
        "title": "Qwen3.6 27B",
        "n_params": 27_400_000_000,
        "digest": "8c1f04d2e7a95b36" * 4,
        "measures": {
            "n_layers": 64,
            "n_heads": 24,
            "n_kv_heads": 4,
            "head_dim": 256,
            "d_model": 5120,
            "n_vocab": 248_320,
            "n_ctx_train": 262_144,
            "n_ctx": 32_768,
            "n_slots": 2,
            "kv_bytes_per_token": 65_536,
            "weight_bytes": 17_400 * _MB,
            "cache_bytes": 4_294 * _MB,
            "needed_bytes": 22_500 * _MB,
        },
        "path": f"/Users/you/Library/Caches/baton/models/{name}.gguf",
        "files": 1,
        "size_bytes": 17_600 * _MB,
        "architecture": "qwen3",
        "quantization": "Q4_K_XL",
        "chat_template": True,
        "tensors": {"Q4_K": 418, "Q6_K": 62, "F32": 371},
        "type_bytes": {"Q4_K": 14_100 * _MB, "Q6_K": 3_250 * _MB, "F32": 50 * _MB},
        "metadata": {
            "general.architecture": "qwen3",
            "general.name": "Qwen3.6 27B",
            "general.organization": "Qwen",
            "general.license": "apache-2.0",
            "general.size_label": "27B",
            "qwen3.block_count": 64,
            "qwen3.context_length": 262_144,
            "qwen3.embedding_length": 5120,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": "248320 values",
            "tokenizer.chat_template": "4116 characters",
        },
    }


def memory() -> dict[str, Any]:
    """As `/settings/memory` reckons for the model that is loaded."""
    return {
        "total_bytes": 192 * GB,
        "room_bytes": 144 * GB,
        "models": [{"model": MODEL, "is_loaded": True, "n_ctx_train": 262_144, "needed_bytes": 22 * GB}],
    }


def slots() -> list[dict[str, Any]]:
    return [{"id": number, "n_ctx": 32_768} for number in range(2)]
