"""A contestant for tests: keeps the protocol of `engine.bench.subject`, and computes nothing.

Its one argument is JSON: `seconds` a token, `system_info`, `gpu`, `threads_s` (seconds a token by number of threads),
`fail` (a command that it answers with an error), `end` (one at which it ends, after last words), `hang` (one that it
never answers), `say` (what it prints in place of being ready), and `n_vocab`. The command `log` answers with the
commands so far.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    config = json.loads(sys.argv[1])
    print(config.get("say", '{"ready": true}'), flush=True)
    per_token = config.get("seconds", 0.01)
    log = []
    for line in sys.stdin:
        fields = json.loads(line)
        command = fields.pop("command")
        log.append(command)
        if command == config.get("end"):
            print("the disk is on fire", file=sys.stderr)
            sys.exit(3)
        if command == config.get("hang"):
            time.sleep(3600)
        answer: dict[str, object] = {}
        if command == config.get("fail"):
            answer = {"error": "no such luck"}
        elif command == "info":
            answer = {
                "version": "1.2.3",
                "system_info": config.get("system_info", ""),
                "gpu": config.get("gpu", False),
            }
        elif command == "load":
            answer = {
                "seconds": per_token * 100,
                "parts": {"weights": per_token * 100},
                "model_type": "fake 1M",
                "model_size": 1 << 20,
                "model_n_params": 1_000_000,
                "n_vocab": 50,
                "n_threads": fields["n_threads"],
                "device": "cpu",
                "gpu_info": "",
                "version": "0.1",
            }
        elif command == "threads":
            if by_threads := config.get("threads_s"):
                per_token = by_threads[str(fields["decode"])]
        elif command in ("prefill", "decode"):
            answer = {"seconds": per_token * len(fields["tokens"])}
        elif command == "calls":
            answer = {"calls": 30, "n_layers": 4}
        elif command == "logits":
            write_logits(fields["tokens"], fields["path"], n_vocab=config["n_vocab"])
            answer = {"n_vocab": config["n_vocab"]}
        elif command == "log":
            answer = {"log": log}
        print(json.dumps(answer), flush=True)


def write_logits(tokens: list[int], path: str, *, n_vocab: int) -> None:
    """Logits that say nothing: all zero."""
    with open(path, "wb") as out:
        out.write(bytes(4 * n_vocab * len(tokens)))


if __name__ == "__main__":
    main()
