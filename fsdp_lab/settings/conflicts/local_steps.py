"""Settings of local steps (``outer`` and those that begin so) that exclude each other, or others."""

from __future__ import annotations

from fsdp_lab.settings.groups import CommConfig, LoraConfig, ModelConfig, ParallelConfig, RunConfig
from fsdp_lab.settings.operators import named
from fsdp_lab.settings.reading.specs import specs_of


def of_local_steps(
    comm: CommConfig, parallel: ParallelConfig, model: ModelConfig, lora: LoraConfig, run: RunConfig
) -> list[str]:
    """A complaint for each pair of settings that exclude each other, where replicas are to train by themselves."""
    if comm.outer == "none":
        specs = [spec for spec in specs_of(CommConfig) if spec.name.startswith("outer_")]
        alone = ", ".join(spec.name for spec in specs if getattr(comm, spec.name) != spec.default)
        return [f"{alone}: no replica trains by itself; give outer, local_sgd or diloco"] if alone else []
    of_ranks = [*_of_ranks(parallel, model, run), *_of_virtual_ranks(comm, model, lora, run)]
    return [*of_ranks, *_of_schedule(comm), *_of_exchange(comm), *_of_gradients(comm)]


def _of_ranks(parallel: ParallelConfig, model: ModelConfig, run: RunConfig) -> list[str]:
    """Complaints about ranks that are not arranged as replicas that can train by themselves."""
    is_virtual = run.virtual_ranks > 0
    wrong = {
        "outer: there is one replica; give dp_replicas 2 or more, or virtual_ranks": (
            parallel.dp_replicas == 1 and not is_virtual
        ),
        "outer: a replica that trains by itself is whole, or sharded by FSDP2; leave out tp and pp": (
            parallel.is_divided
        ),
        "mixed_precision: each replica would have a loss scale of its own; give bf16 or no": (
            model.mixed_precision == "fp16"
        ),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_virtual_ranks(comm: CommConfig, model: ModelConfig, lora: LoraConfig, run: RunConfig) -> list[str]:
    """Complaints about what virtual ranks, each of them a whole replica, cannot do."""
    methods = {"comm_compress": comm.comm_compress, "param_compress": comm.param_compress}
    given = ", ".join(name for name, method in methods.items() if method != "none")
    wrong = {
        f"{given}: virtual ranks with outer are whole replicas, inside of which nothing is sent; leave it out": (
            bool(given)
        ),
        "compile: a compiled block computes with the weights of the one that was copied; leave it out": (
            named(model).get("compile", "off") != "off"
        ),
        "lora_rank: replicas that train by themselves train whole weights; leave it out": lora.lora_rank is not None,
    }
    return [complaint for complaint, is_so in wrong.items() if is_so and run.virtual_ranks]


def _of_schedule(comm: CommConfig) -> list[str]:
    """Complaints about steps after which nothing can be sent, or used."""
    every = comm.outer_every
    wrong = {
        f"outer_fragments: {comm.outer_fragments} parts in {every} steps; no two share a step, so give at most "
        f"outer_every": comm.outer_fragments > every,
        f"outer_overlap: {comm.outer_overlap} steps are not over when a part is sent again, after {every}; give less "
        "than outer_every": comm.outer_overlap >= every,
        "outer_mixing: a replica has not trained on since a part was sent; give outer_overlap, too": (
            comm.outer_mixing > 0 and comm.outer_overlap == 0
        ),
        "outer_momentum: local_sgd goes on with the replicas' mean, without momentum; give diloco": (
            comm.outer == "local_sgd" and bool(comm.outer_momentum)
        ),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_exchange(comm: CommConfig) -> list[str]:
    """Complaints about ways of sending that have nothing to send."""
    is_stock, everywhere = comm.outer_compress == "none", comm.outer_exchange == "all_gather"
    wrong = {
        "outer_exchange: all_gather hands on a method's messages; give outer_compress": is_stock and everywhere,
        "outer_gather: torch's own all-reduce brings the mean back; give outer_compress, or leave it out": (
            is_stock and comm.outer_gather != "none"
        ),
        "outer_gather: with outer_exchange all_gather no mean is sent back; leave it out": (
            everywhere and comm.outer_gather != "none"
        ),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


def _of_gradients(comm: CommConfig) -> list[str]:
    """Complaints about steps, rates and methods of nothing."""
    names = ("outer_gradient_every", "outer_gradient_rate")
    alone = ", ".join(name for name in names if getattr(comm, name) is not None)
    idle = ", ".join(
        name
        for name, is_given in {
            "outer": comm.outer != "local_sgd",
            "outer_fragments": comm.outer_fragments > 1,
            "outer_overlap": comm.outer_overlap > 0,
            "outer_learning_rate": comm.outer_learning_rate is not None,
        }.items()
        if is_given
    )
    wrong = {
        f"{alone}: nothing goes by its gradients; give outer_by_gradient, embeddings or all": (
            comm.outer_by_gradient == "none" and bool(alone)
        ),
        f"{idle}: with outer_by_gradient all no replica takes a step of its own, so there is no outer step; give outer "
        "local_sgd, and leave the others out": comm.outer_by_gradient == "all" and bool(idle),
    }
    if comm.outer_gradient_compress != "none":
        wrong |= {
            "outer_gradient_compress: nothing goes by its gradients; give outer_by_gradient embeddings": (
                comm.outer_by_gradient == "none"
            ),
            "outer_gradient_compress: with outer_by_gradient all everything goes by outer_compress; leave it out": (
                comm.outer_by_gradient == "all"
            ),
        }
    return [complaint for complaint, is_so in wrong.items() if is_so]
