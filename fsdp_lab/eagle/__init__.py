"""EAGLE-3: a small draft model proposes what a large target model will say (arXiv 2503.01840).

Read `train` first: the program. Then, in the order of the work:

data        conversations -> tokens with a loss mask, and what the frozen target sees of them
draft       the draft, its target, its vocabulary, and its folder for vLLM, SGLang and speculators
training    the training-time test, and the loss of the draft against the target
decoding    the draft proposes, the target verifies; how much faster that is
choice      which draft a training keeps; `evaluate` measures a finished one
"""

from fsdp_lab.eagle.decoding.chain import Generated, Sampling, speculate
from fsdp_lab.eagle.draft.network import Draft, DraftShape
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel

__all__ = ["Draft", "DraftShape", "EagleTrainingModel", "Generated", "Sampling", "Target", "Vocabulary", "speculate"]
