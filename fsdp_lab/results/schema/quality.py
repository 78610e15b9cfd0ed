"""Fields about the quality of what was trained."""

from fsdp_lab.results.schema.field import Field

QUALITY = (
    Field("nonfinite_steps", "int", "steps", "steps skipped because a gradient or the loss was not finite"),
    Field(
        "scaler_skipped_steps",
        "int",
        "steps",
        "steps skipped beside those because float16 overflowed with a loss scale above 1, which was then halved; null "
        "where no loss is scaled",
        "no",
    ),
    Field("loss_scale", "float", "", "what the last step's loss was multiplied by; null where no loss is scaled", "no"),
    Field(
        "clip_rate",
        "float",
        "0 to 1",
        "share of steps whose gradient norm was clipped; with outer those of the first replica",
        since=2,
    ),
    Field(
        "train_loss",
        "float",
        "nats/token",
        "training loss, mean over the last steps (a draft's: weighted sum; a masked model's: tokens and pairs)",
    ),
    Field("train_loss_by_position", "list of float", "nats/token", "a draft's: of each token ahead, unweighted", "no"),
    Field(
        "train_accuracy_by_position",
        "list of float",
        "0 to 1",
        "a draft's: its first choice is the target's, for each token ahead, the ones before given; the last steps",
        "no",
    ),
    Field(
        "tau",
        "float",
        "tokens",
        "the kept draft's acceptance length: tokens a pass of the target on held-out questions, greedy",
        "no",
    ),
    Field("tau_step", "int", "steps", "after which the kept draft was measured: the best of those measured", "no"),
    Field("tau_prompts", "int", "", "held-out questions that tau is over", "no"),
    Field(
        "features_read",
        "int",
        "conversations",
        "dealt to all ranks since the last start whose features were on disk (--features cached); online: null",
        "no",
    ),
    Field("features_computed", "int", "conversations", "those that the target looked at; such steps take longer", "no"),
    Field("features_gb", "float", "GB (1e9)", "of files in the features' folder at the end", "no"),
    Field("val_loss", "float", "nats/token", "validation loss; a masked model's: of masked tokens"),
    Field("val_ppl", "float", "", "exp(val_loss)"),
    Field(
        "val_accuracy",
        "float",
        "0 to 1",
        "top-1 accuracy: share of the tokens of val_loss that are the model's first choice; null in older rows",
        "no",
    ),
    Field("val_tokens", "int", "tokens", "tokens that val_loss is a mean of"),
    Field("val_next_sentence_loss", "float", "nats/pair", "a masked model's: does the second segment follow?", "no"),
    Field("val_next_sentence_accuracy", "float", "0 to 1", "a masked model's: pairs of segments told rightly", "no"),
    Field("eval_weights", "str", "", "what was evaluated: the fp32 shards, or replicas as gathered (compressed)"),
    Field("reached_target", "bool", "", "did an evaluation reach target_ppl? null without a target", nullable=True),
    Field("steps_to_target_ppl", "int", "steps", "before the first evaluation that did; null: a miss", nullable=True),
    Field("time_to_target_ppl_s", "float", "s", "time in optimiser steps before it, as train_time_s", nullable=True),
    Field(
        "ppl_at_fixed_time",
        "float",
        "",
        "validation PPL at the first step's end after ppl_at_s seconds of training; null: it ended before",
        nullable=True,
    ),
    Field("loss_curve", "str", "", "curve file, seen from the folder of the results file", "no"),
)
PERPLEXITY = ("val_loss", "val_ppl", "val_tokens", "eval_weights")
"""Fields that a draft's training does not measure."""
