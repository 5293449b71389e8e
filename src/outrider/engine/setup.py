"""From settings to a ready engine: load, check that everything fits together, size the caches."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import psutil
import torch

from outrider.config import EngineConfig, SpeculativeConfig, Verification
from outrider.drafters.base import Drafter
from outrider.drafters.build import build_drafter
from outrider.drafters.cross_vocab import CrossVocabDrafter
from outrider.drafters.draft_model import Coupled, DraftModelDrafter
from outrider.engine.backends import build_model, resolve_device
from outrider.engine.engine import Engine
from outrider.engine.verify import verify
from outrider.errors import ConfigError, VocabularyMismatchError
from outrider.models.base import CausalModel
from outrider.models.loader.load import OpenModel, open_model
from outrider.models.tokenizer import Tokenizer
from outrider.models.vocabulary import Vocabulary
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import GrammarCompiler
from outrider.scheduler.speculation import FixedSpeculation

logger = logging.getLogger(__name__)

FREE_MEMORY_SHARE = 0.25
"""Of the memory that is free at start, the share that the target's KV cache may take unless told otherwise."""

_COUPLED: dict[Verification, Coupled] = {
    "auto": "seeded",
    "coupled": "all",
    "block": "none",
    "traversal": "none",
    "standard": "none",
}
"""Which requests' drafts the draft model draws with the target's own noise."""


@dataclass(frozen=True)
class ReadyEngine:
    """An engine, the tokenizer of its target, and the name of what was loaded."""

    engine: Engine
    tokenizer: Tokenizer
    model_name: str


def build_engine(config: EngineConfig) -> ReadyEngine:
    """Load the target, and the draft model if there is one. Raises ``UserError`` if something does not fit."""
    device = resolve_device(config.device)
    opened = open_model(config.model)
    target = build_model(opened, config, device, quantization=config.quantization)
    max_model_len = _max_model_len(config, target)
    num_blocks = _num_blocks(config, target, max_model_len)
    capacity = num_blocks * config.block_size
    if capacity < max_model_len:
        if config.max_model_len is not None:
            raise ConfigError(
                f"the KV cache holds {capacity} tokens, fewer than max_model_len={max_model_len}; "
                f"raise kv_cache_memory or lower max_model_len"
            )
        logger.warning("max_model_len is %d, not %d: the KV cache holds no more", capacity, max_model_len)
        max_model_len = capacity
    runner = ModelRunner(target, num_blocks=num_blocks, block_size=config.block_size)
    speculative = config.speculative
    drafter = build_drafter(speculative, lambda: _model_drafter(config, opened, device, num_blocks))
    engine = Engine(
        runner,
        drafter,
        FixedSpeculation(0 if drafter is None else speculative.num_speculative_tokens),
        new_stream=opened.tokenizer.stream,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        end_token_ids=frozenset(opened.config.eos_token_ids),
        grammars=GrammarCompiler(opened.tokenizer.backend.to_str, target.vocab_size, opened.config.eos_token_ids),
        encode=partial(opened.tokenizer.encode, add_special_tokens=False),
        seed=config.seed,
        speculation=_describe(speculative, drafter),
        verify_with=partial(verify, method=speculative.verification),
    )
    return ReadyEngine(engine, opened.tokenizer, opened.name)


def _max_model_len(config: EngineConfig, target: CausalModel) -> int:
    if config.max_model_len is None:
        return target.max_model_len
    if config.max_model_len > target.max_model_len:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is above the model's own limit of {target.max_model_len} tokens"
        )
    return config.max_model_len


def _num_blocks(config: EngineConfig, target: CausalModel, max_model_len: int) -> int:
    per_block = target.bytes_per_block(config.block_size)
    wanted = config.max_num_seqs * -(-max_model_len // config.block_size)
    if config.kv_cache_memory is not None:
        affordable = config.kv_cache_memory // per_block
    else:
        affordable = int(_free_memory(target.device) * FREE_MEMORY_SHARE) // per_block
    if affordable < 1:
        raise ConfigError(
            f"the KV cache has room for no block of {config.block_size} tokens, which takes {per_block} bytes; "
            f"raise kv_cache_memory"
        )
    return min(wanted, affordable)


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _model_drafter(config: EngineConfig, target: OpenModel, device: torch.device, num_blocks: int) -> Drafter:
    speculative = config.speculative
    if speculative.model is None:
        raise ConfigError(f"method={speculative.method!r} needs 'model'")
    opened = open_model(speculative.model)
    if speculative.resolved_method == "draft_model":
        check_same_vocabulary(target, opened)
    kept = kept_tokens(opened, speculative.draft_vocab_size)
    # The target's dtype is not the draft's where that has a quantization of its own.
    own = config if speculative.quantization is None else config.model_copy(update={"dtype": "auto"})
    model = build_model(opened, own, device, quantization=speculative.quantization, head_rows=kept)
    runner = ModelRunner(model, num_blocks=num_blocks, block_size=config.block_size)
    if target.tokenizer.vocabulary_difference(opened.tokenizer) is not None:
        return _cross_vocab_drafter(config, target, opened, runner, kept)
    return DraftModelDrafter(
        runner,
        target_vocab_size=target.config.vocab_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        coupled=_COUPLED[speculative.verification],
        token_ids=kept,
        tree_width=speculative.tree_width,
    )


def _cross_vocab_drafter(
    config: EngineConfig, target: OpenModel, draft: OpenModel, runner: ModelRunner, kept: list[int] | None
) -> CrossVocabDrafter:
    drafter = CrossVocabDrafter(
        runner,
        own=Vocabulary(draft.tokenizer, draft.config.vocab_size),
        target=Vocabulary(target.tokenizer, target.config.vocab_size),
        target_vocab_size=target.config.vocab_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        algorithm=config.speculative.cross_vocab_algorithm,
        coupled=_COUPLED[config.speculative.verification],
        token_ids=kept,
    )
    shared = drafter.shared
    logger.info(
        "draft model %s has another vocabulary: %d of %d tokens are the target's too, and %.0f%% of the most frequent",
        draft.name,
        shared.num_ordinary,
        shared.num_draft,
        100.0 * shared.share,
    )
    return drafter


def kept_tokens(opened: OpenModel, count: int | None) -> list[int] | None:
    """The ids that a trimmed draft can propose: the ``count`` lowest, and the end tokens; None for all.

    Byte-pair vocabularies list their tokens in the order in which they were merged, which is by frequency; so the
    lowest ids are the most frequent tokens. Trimming loses no exactness, only the drafts that would have been others.
    """
    if count is None or count >= opened.config.vocab_size:
        return None
    return sorted({*range(count), *opened.config.eos_token_ids})


def check_same_vocabulary(target: OpenModel, draft: OpenModel) -> None:
    """Raise ``VocabularyMismatchError`` unless every real token has the same id; padding may differ."""
    difference = target.tokenizer.vocabulary_difference(draft.tokenizer)
    if difference is not None:
        raise VocabularyMismatchError(
            f"draft model {draft.name!r} has {difference.other_size} tokens and target {target.name!r} has "
            f"{difference.own_size}; they first differ at id {difference.token_id}: {difference.other_token!r} in the "
            f"draft, {difference.own_token!r} in the target. Use method='cross_vocab', or a draft model with the "
            f"target's tokenizer"
        )


def _describe(speculative: SpeculativeConfig, drafter: Drafter | None) -> str:
    if drafter is not None:
        return f"{drafter.name}, up to {speculative.num_speculative_tokens} tokens per step"
    if speculative.num_speculative_tokens == 0:
        return "inactive: num_speculative_tokens=0"
    return "inactive: speculation is off"
