"""From settings to a ready engine: load, check that everything fits together, size the caches."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from outrider import __version__, native
from outrider.config import EngineConfig, SpeculativeConfig
from outrider.drafters.base import Drafter
from outrider.drafters.build import Drafters, build_drafters
from outrider.engine.backends import build_model, resolve_device
from outrider.engine.engine import Engine, EngineLimits, TextTools
from outrider.engine.memory import MemoryPlan, plan_memory
from outrider.engine.verify import verify
from outrider.errors import ConfigError, VocabularyMismatchError
from outrider.machine import processor_name
from outrider.models.base import CausalModel
from outrider.models.loader.cache import cache_directory
from outrider.models.loader.load import OpenModel, open_model
from outrider.models.tokenizer import Tokenizer
from outrider.outputs import SpeculationStatus
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import GrammarCompiler
from outrider.speculation.adaptive import AdaptivePolicy, ModelDrafting
from outrider.speculation.cost_cache import costs_of
from outrider.speculation.costs import DraftCosts, PassCosts
from outrider.speculation.policy import FixedPolicy, Policy
from outrider.speculation.speculator import Speculator
from outrider.verification.registry import VERIFIERS

logger = logging.getLogger(__name__)

MEASURING_SECONDS = 1.0
"""Duration of measuring the costs of the target's passes, at the first start of a model on a machine."""


@dataclass(frozen=True)
class ReadyEngine:
    """An engine, the tokenizer of its target, the name of what was loaded, and what it may take of memory."""

    engine: Engine
    tokenizer: Tokenizer
    model_name: str
    memory: MemoryPlan


def build_engine(config: EngineConfig) -> ReadyEngine:
    """Load the target, and the draft model if there is one. Raises ``UserError`` if something does not fit."""
    device = resolve_device(config.device)
    opened = open_model(config.model)
    target = build_model(opened, config, device, quantization=config.quantization)
    max_model_len = _max_model_len(config, target)
    speculative = config.speculative
    draft = _open_draft(config, opened, device) if speculative.drafts_with_model else None
    memory = plan_memory(config, target, None if draft is None else draft.model, max_model_len)
    logger.info("%s", memory.describe())
    capacity = memory.num_tokens
    if capacity < max_model_len:
        if config.max_model_len is not None:
            raise ConfigError(
                f"the KV cache holds {capacity} tokens, fewer than max_model_len={max_model_len}; "
                f"raise kv_cache_memory or lower max_model_len"
            )
        logger.warning("max_model_len is %d, not %d: the KV cache holds no more", capacity, max_model_len)
        max_model_len = capacity
    runner, model_drafter, costed_draft = _runner(config, target, memory), None, None
    if draft is not None:
        costed_draft = _Costed(draft.opened, _runner(config, draft.model, memory))
        model_drafter = _model_drafter(config, opened, draft, costed_draft.runner)
    drafters = build_drafters(speculative, model_drafter)
    speculator = Speculator(
        drafters.retrieval,
        drafters.model,
        _policy(config, drafters, _Costed(opened, runner), costed_draft),
        name=drafters.name,
        model_max_tokens=drafters.model_max_tokens,
    )
    end_token_ids = frozenset(opened.config.eos_token_ids)
    engine = Engine(
        runner,
        speculator,
        TextTools(
            new_stream=opened.tokenizer.stream,
            end_token_ids=end_token_ids,
            encode=partial(opened.tokenizer.encode, add_special_tokens=False),
            grammars=GrammarCompiler(opened.tokenizer.backend.to_str, target.vocab_size, end_token_ids),
        ),
        EngineLimits(max_model_len, config.max_num_seqs, config.max_num_batched_tokens),
        seed=config.seed,
        speculation=_status(speculative, speculator),
        verify_with=partial(verify, verifier=VERIFIERS[speculative.verification]),
    )
    return ReadyEngine(engine, opened.tokenizer, opened.name, memory)


def _max_model_len(config: EngineConfig, target: CausalModel) -> int:
    if config.max_model_len is None:
        return target.max_model_len
    if config.max_model_len > target.max_model_len:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is above the model's own limit of {target.max_model_len} tokens"
        )
    return config.max_model_len


@dataclass(frozen=True)
class _Draft:
    """A draft model, and which of its output tokens it was trimmed to."""

    opened: OpenModel
    model: CausalModel
    kept: list[int] | None


def _open_draft(config: EngineConfig, target: OpenModel, device: str) -> _Draft:
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
    return _Draft(opened, model, kept)


def _runner(config: EngineConfig, model: CausalModel, memory: MemoryPlan) -> ModelRunner:
    return ModelRunner(
        model, num_blocks=memory.num_blocks, block_size=config.block_size, prefix_caching=config.prefix_caching
    )


def _model_drafter(config: EngineConfig, target: OpenModel, draft: _Draft, runner: ModelRunner) -> Drafter:
    speculative = config.speculative
    if target.tokenizer.vocabulary_difference(draft.opened.tokenizer) is not None:
        return _cross_vocab_drafter(config, target, draft.opened, runner, draft.kept)
    from outrider.drafters.draft_model import DraftModelDrafter

    return DraftModelDrafter(
        runner,
        target_vocab_size=target.config.vocab_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        coupled=VERIFIERS[speculative.verification].coupling,
        token_ids=draft.kept,
        tree_width=speculative.tree_width,
    )


@dataclass(frozen=True)
class _Costed:
    """A model whose passes have a cost: where it comes from, and what runs it."""

    opened: OpenModel
    runner: ModelRunner

    def costs(self, config: EngineConfig, quantization: str | None, seconds: float) -> PassCosts:
        """The costs of its passes on this machine, kept in the cache folder."""
        model = self.runner.model
        key = {
            "outrider": __version__,
            "processor": processor_name(),
            "kernels": native.describe() if native.available() else "reference",
            "device": str(model.device),
            "files": self.opened.source.files(),
            "formats": [config.backend, config.dtype, quantization],
            "output rows": model.vocab_size,
        }
        return costs_of(self.runner, cache_directory() / "costs", key, seconds=seconds)


def _policy(config: EngineConfig, drafters: Drafters, target: _Costed, draft: _Costed | None) -> Policy:
    """Who decides how much is drafted. Measures the costs of passes on this machine if the policy needs them."""
    speculative = config.speculative
    if not drafters.retrieval and drafters.model is None:
        return FixedPolicy(0)
    if not speculative.adaptive:
        return FixedPolicy(speculative.num_speculative_tokens)
    model = None
    if drafters.model is not None:
        costs = DraftCosts()
        if draft is not None:
            costs = DraftCosts(draft.costs(config, speculative.quantization, MEASURING_SECONDS / 2.0))
        tree = speculative.tree_width > 1
        model = ModelDrafting(drafters.model.name, costs, drafters.model_max_tokens, tree=tree)
    passes = target.costs(config, config.quantization, MEASURING_SECONDS)
    return AdaptivePolicy(passes, num_speculative_tokens=speculative.num_speculative_tokens, model=model)


def _cross_vocab_drafter(
    config: EngineConfig, target: OpenModel, draft: OpenModel, runner: ModelRunner, kept: list[int] | None
) -> Drafter:
    from outrider.drafters.cross_vocab import CrossVocabDrafter
    from outrider.models.vocabulary import Vocabulary

    drafter = CrossVocabDrafter(
        runner,
        own=Vocabulary(draft.tokenizer, draft.config.vocab_size),
        target=Vocabulary(target.tokenizer, target.config.vocab_size),
        target_vocab_size=target.config.vocab_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        algorithm=config.speculative.cross_vocab_algorithm,
        coupled=VERIFIERS[config.speculative.verification].coupling,
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


def _status(speculative: SpeculativeConfig, speculator: Speculator) -> SpeculationStatus:
    if speculator.active:
        return SpeculationStatus(speculator.name, speculative.num_speculative_tokens)
    off = "num_speculative_tokens=0" if speculative.num_speculative_tokens == 0 else "speculation is off"
    return SpeculationStatus(num_speculative_tokens=0, inactive_reason=off)
