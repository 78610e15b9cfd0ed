"""Systems whose optimizer exchanges something of its own between replicas, in place of gradients."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

_REPLICAS = {"dp_replicas": 2}
_CLIPS = "Each replica clips by the norm of its own gradients (--max_grad_norm); the paper does not say how it clips."

_DEMO = System(
    name="demo",
    about="each replica keeps its momentum, and sends the largest cosines of it",
    paper=Paper(
        "Peng, Chen, Su, Quesnelle, Kingma and Liu", 2024, "DeMo: Decoupled Momentum Optimization", "2411.19870"
    ),
    does=(
        "Each replica adds its gradient to a momentum of its own (decay 0.999), takes the 32 largest coefficients of "
        "the discrete cosine transform of every chunk of 64 x 64 out of it, and sends these to all others. Everyone's "
        "coefficients are averaged and transformed back, and the sign of that moves the weights."
    ),
    here=(
        "All of it, by --optimizer demo: the momentum is kept as error feedback is, so it is saved and taken back with "
        "a void step; the transform is the method `dct`, which can be used elsewhere, and another method can take its "
        "place (docs/library/optimizers.md)."
    ),
    differs=(
        "Gradients enter the momentum as in the paper's equations; its public code multiplies them by the rate first. "
        "Only while the rate changes are the two different.",
        "A coefficient's mean is over the replicas that sent it, as in the public code; the library has the other "
        'reading, too (`mean="replicas"`).',
        "Positions within a chunk take about 9 bits (Elias-Fano); the public code sends 64 each.",
        "Inside a replica FSDP2 may shard: then chunks are of a rank's rows.",
        "The rate is AdamW's of the preset; the public configuration has 4e-4 for both optimizers.",
        _CLIPS,
    ),
    published=(
        "up to 85 times less data a GPU than AdamW under DDP, with comparable loss and accuracy; language models of "
        "300M and 1B parameters (abstract, v2)",
    ),
    measured=(
        "36 times less than float32 gradients, validation PPL 2,221 where AdamW had 2,370 (gpt2-nano, 40 steps, two "
        "replicas, one seed, no rate tuned; docs/library/optimizers.md): it trains, not which is better",
    ),
    recipes=(
        Recipe(
            "demo",
            "32 of the cosines of every chunk of 64 x 64",
            {"optimizer_compress": "dct"},
            {**_REPLICAS, "optimizer": "demo"},
            optimizer_bits=0.641,
        ),
    ),
)

_ONE_BIT_ADAM = System(
    name="1-bit-adam",
    about="Adam first; then signs of momentum, both ways, behind a variance that stays as it was",
    paper=Paper(
        "Tang et al.",
        2021,
        "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed",
        "2102.02888",
    ),
    does=(
        "Trains with plain Adam first. Then it freezes Adam's variance and exchanges momentum in place of gradients: "
        "signs and one scale, with error feedback on each rank and a second compression, with feedback, of the sum."
    ),
    here=(
        "All of it, by --optimizer onebit_adam: plain Adam for --adam_freeze_after steps, then the frozen variance, "
        "and momentum compressed on both ways. The compression alone, of gradients that enter an ordinary AdamW under "
        "FSDP2, is `1-bit-adam-gradients`."
    ),
    differs=(
        "Scales are those of groups of 1,024 elements; the paper has one a tensor.",
        "How long Adam is plain is a number of steps; the paper compares the variance's norm with an earlier one.",
        "Adam's bias is corrected, as torch does; the public code leaves that out.",
        "An element whose variance is still 0 is not moved after the freeze; the public code wants a mask for such.",
        _CLIPS,
        "`1-bit-adam-gradients` and `1-bit-adam-one-scale` have neither frozen variance nor exchanged momentum, and no "
        "second compression: under FSDP2 the sum stays at its owner. The paper's point is that this loses quality, so "
        "a result of these two is none of 1-bit Adam's.",
    ),
    published=(
        "up to 5x less volume, with the convergence of Adam; up to 3.3x the throughput for BERT-Large's pre-training "
        "and 2.9x for SQuAD, on up to 256 GPUs (abstract)",
    ),
    measured=(
        "beside AdamW at a rate of 4e-4 (PPL 20,484 and 19,181, 40 steps of gpt2-nano, frozen after 20, one seed); "
        "at the preset's 4e-3 it broke down when the variance was frozen, compressed or not "
        "(docs/library/optimizers.md)",
    ),
    recipes=(
        Recipe(
            "1-bit-adam",
            "signs of momentum with a mean magnitude a group, there and back",
            {"optimizer_compress": "signsgd"},
            {**_REPLICAS, "optimizer": "onebit_adam"},
            optimizer_bits=2.0625,
        ),
        Recipe(
            "1-bit-adam-gradients",
            "the compression alone, of gradients under FSDP2: two means a group, one for each sign",
            {"comm_compress": "onebit warmup_steps=100"},
            gradient_bits=1.06,
        ),
        Recipe(
            "1-bit-adam-one-scale",
            "the same with one mean magnitude a group, for both signs",
            {"comm_compress": "signsgd warmup_steps=100"},
            gradient_bits=1.03,
        ),
    ),
)

_DION = System(
    name="dion",
    about="momentum whose updates have a low rank and orthonormal factors, which is all that replicas exchange",
    paper=Paper(
        "Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford",
        2025,
        "Dion: Distributed Orthonormalized Updates",
        "2504.05295",
    ),
    does=(
        "One step of subspace iteration on each matrix's momentum gives low-rank factors, one of them made orthonormal "
        "by QR, of the other the columns are normalised; their product moves the weights. Replicas sum the factors in "
        "place of gradients, and each keeps in its momentum what the factors do not hold."
    ),
    here=(
        "All of it for whole replicas, by --optimizer dion: the blocks' matrices by Dion, the rest by AdamW with exact "
        "mean gradients; both all-reduces are counted. The rank is --dion_rank, a share of the shorter side; the "
        "matrices have a rate of their own, --dion_learning_rate, with the public code's scale for their shape."
    ),
    differs=(
        "Replicas are whole: FSDP2's shards inside one are refused: the paper's collectives among them are missing.",
        "QR is torch's; the public code has a randomised one for large matrices on GPUs, and turns wide matrices.",
        "Embeddings and head go to AdamW uncompressed: of a small model these are most of what is sent.",
        _CLIPS,
    ),
    published=(
        "a quarter of the rank is about as good as all of it at 3B parameters (README of microsoft/dion; 120M to 3B)",
    ),
    measured=(
        "validation PPL 2,329 where AdamW had 2,370 (gpt2-nano, 40 steps, two replicas, one seed, no rate tuned; "
        "docs/library/optimizers.md): it trains, not which is better",
    ),
    recipes=(
        Recipe(
            "dion",
            "a quarter of the rank",
            {"optimizer_compress": "identity"},
            {**_REPLICAS, "optimizer": "dion"},
        ),
    ),
)

_EF21_MUON = System(
    name="ef21-muon",
    about="Muon on an estimate of the momentum, which compressed differences move; the weights go back so, too",
    paper=Paper(
        "Gruntkowska, Gaponov, Tovmasyan and Richtarik", 2025, "Error Feedback for Muon and Friends", "2510.00643"
    ),
    does=(
        "Each worker keeps a momentum and an estimate of it, and sends the compressed difference of the two, which "
        "moves the estimate (EF21). A server adds up all differences in an estimate of the mean, makes a step of Muon "
        "with it, and sends back the compressed difference of its weights from those that the workers have (EF21-P), "
        "which moves theirs. Any norm's linear minimisation may take the place of Muon's, layer by layer."
    ),
    here=(
        "All of it, in the version for stochastic gradients, by --optimizer ef21_muon: layer by layer, both ways by "
        "any method of fixed size (--optimizer_compress there, --optimizer_gather back). Every replica is the server "
        "of a share of the parameters. Blocks' matrices have the spectral norm, by Muon's Newton-Schulz; embeddings, "
        "head and vectors that of the largest element, whose step is the sign (docs/library/optimizers.md)."
    ),
    differs=(
        "The paper has one server; here each replica is one, of about as many elements, so that no link carries more.",
        "Momenta and estimates begin with zeros, which the paper leaves open.",
        "Radii are not tuned layer by layer: an update's root mean square is 0.2, AdamW's about, so the rate is "
        "AdamW's.",
        "Weight decay is decoupled, of the server's weights; the paper has none.",
        "Parameters of 8,192 elements and more that are not a block's matrix are compressed in one piece a server.",
        "How much is sent of each layer (a tenth) is this project's choice, as the way back of the first recipe is; "
        "the paper's low-rank compressor is not here.",
        "Written from public descriptions of the algorithm: the paper's text was not at hand, and no public code of "
        "its authors was found.",
        _CLIPS,
    ),
    published=(
        "up to 7 times less sent than by Muon, Scion and Gluon uncompressed, without loss of accuracy (NanoGPT; "
        "abstract)",
    ),
    measured=(
        "26 times less than float32 gradients; the training loss after 40 steps was 7.84 at a rate of 0.02, where "
        "AdamW's was 7.78 at its own (gpt2-nano, two virtual replicas, one seed; docs/library/optimizers.md): it "
        "trains, not which is better",
    ),
    recipes=(
        Recipe(
            "ef21-muon",
            "the largest tenth of a layer's difference by natural compression, and signs of the weights' moves back",
            {"optimizer_compress": "topk ratio=0.1 values=nc", "optimizer_gather": "signsgd"},
            {**_REPLICAS, "optimizer": "ef21_muon"},
            optimizer_bits=2.444,
        ),
        Recipe(
            "ef21-muon-one-way",
            "the same there, and the weights back as they are",
            {"optimizer_compress": "topk ratio=0.1 values=nc"},
            {**_REPLICAS, "optimizer": "ef21_muon"},
            optimizer_bits=33.413,
        ),
    ),
)

_ZERO_ONE_ADAM = System(
    name="0/1-adam",
    about="1-bit Adam whose variance is updated ever more rarely, and whose replicas make local steps in the end",
    paper=Paper(
        "Lu, Li, Zhang, De Sa and He",
        2022,
        "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam",
        "2202.06009",
    ),
    does=(
        "The variance of Adam is updated from exact mean gradients, at intervals that double after every 16 updates. "
        "In between replicas exchange what they have gone (the public code: their gradients) in signs, both ways, with "
        "error feedback. When the rate's warm-up is over the variance stays, and replicas synchronise at intervals "
        "that grow as the rate falls, up to 16 steps; the momentum is then what was gone, divided by the rates."
    ),
    here=(
        "All of it, by --optimizer zero_one_adam, with the public code's policies as settings: --adam_freeze_after, "
        "--adam_variance_scaler, --adam_local_scaler, --adam_local_steps. Between synchronisations replicas compute "
        "their gradients at weights of their own; evaluation and checkpoints have those that all agreed on, and the "
        "last step synchronises (docs/library/optimizers.md)."
    ),
    differs=(
        "A step that updates the variance sends its gradients exactly and nothing else, as in the public code; the "
        "paper's algorithm sends compressed messages as well.",
        "Before the freeze `0/1-adam` compresses what was gone, as the paper does, and `0/1-adam-gradients` gradients, "
        "which enter the momentum, as the public code does; after it both are the same.",
        "Weight decay is decoupled, of what all agreed on; in the public code it is a part of what was gone after the "
        "freeze. There the first step moves nothing, and the steps that update the variance are those that the "
        "interval divides.",
        "Adam's bias is corrected, the variance's by the number of its updates; the public code leaves that out.",
        "Scales are those of groups of 1,024 elements; the paper has one a tensor.",
        "An element whose variance is still 0 is not moved; the public code wants a mask for such.",
        "With FSDP2 inside a replica there are no local steps (--adam_local_steps 1).",
        _CLIPS,
    ),
    published=(
        "up to 87 % less volume and 54 % fewer rounds than 1-bit Adam, up to twice its throughput; BERT, GPT-2 and "
        "ImageNet on up to 128 GPUs, with the same convergence (abstract)",
    ),
    measured=(
        "`0/1-adam` broke down after 20 steps of gpt2-nano, four after the first signs (one seed; "
        "docs/library/optimizers.md): signs need a variance that has settled; `0/1-adam-gradients` recovered from its "
        "worst steps on one seed, and broke down eleven steps after the first signs on another",
    ),
    recipes=(
        Recipe(
            "0/1-adam",
            "signs of what was gone with a mean magnitude a group, there and back, where nothing is exact or skipped",
            {"optimizer_compress": "signsgd"},
            {**_REPLICAS, "optimizer": "zero_one_adam"},
            optimizer_bits=2.0625,
        ),
        Recipe(
            "0/1-adam-gradients",
            "the public code's reading: signs of gradients until the variance is frozen, of what was gone after that",
            {"optimizer_compress": "signsgd", "optimizer_until_freeze": "gradients"},
            {**_REPLICAS, "optimizer": "zero_one_adam"},
            optimizer_bits=2.0625,
        ),
    ),
)

OPTIMIZERS = (_DEMO, _ONE_BIT_ADAM, _ZERO_ONE_ADAM, _DION, _EF21_MUON)
