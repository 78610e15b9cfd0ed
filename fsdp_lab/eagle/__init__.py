"""EAGLE-3: a small draft model proposes what a large target model will say (arXiv 2503.01840); from data to export.

conversations -> data (tokens, loss mask) -> vocabulary (which tokens the draft knows)
target (frozen) -> features -> draft;  training (test-time unrolled)  -> soft_loss (chunked, against the target)
decoding (draft, verify, crop) <- the same draft, the same layer;  export -> vLLM, SGLang, speculators
"""

from fsdp_lab.eagle.decoding.chain import Generated, Sampling, speculate
from fsdp_lab.eagle.draft.network import Draft, DraftShape
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel

__all__ = ["Draft", "DraftShape", "EagleTrainingModel", "Generated", "Sampling", "Target", "Vocabulary", "speculate"]
