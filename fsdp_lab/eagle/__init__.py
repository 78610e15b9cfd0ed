"""EAGLE-3: a small draft model proposes what a large target model will say (arXiv 2503.01840).

Read `train` first: the program. Then, in the order of the work:

data        conversations -> tokens with a loss mask, and what the frozen target sees of them
draft       the draft, its target, its vocabulary, and its folder for vLLM, SGLang and speculators
training    the training-time test, and the loss of the draft against the target
decoding    the draft proposes, the target verifies; how much faster that is
choice      which draft a training keeps; `evaluate` measures a finished one

Nothing is imported here: settings of drafts are read where neither torch nor transformers is needed.
"""
