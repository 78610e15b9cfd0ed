"""The table that a run prints last: how good the model is, what was sent and how long a step took; then the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_lab.run.display.same_run import same_run
from fsdp_lab.run.display.units import in_bytes
from fsdp_lab.trace import Profile, short_table


def summary(row: Mapping[str, Any], written: Mapping[str, Path], profile: Profile | None = None) -> str:
    """A table of one results row (and of its profile, if there is one), and where everything went."""
    lines = [
        "",
        f"run          {row['run_name']}",
        *_quality(row),
        *_sent(row),
        *_step_time(row),
        "",
        f"trained      {row['model']}, {row['num_parameters'] / 1e6:.1f}M parameters, {row['steps']} steps, "
        f"{row['tokens_seen']:,} tokens of {row['dataset']}",
        *_ranks(row),
        *_local_steps(row),
        *_speed(row),
        *_reading(row),
    ]
    if row["grad_rel_error"] is not None:
        cosine = "none" if row["grad_cos_sim"] is None else f"{row['grad_cos_sim']:.6f}"
        lines.append(
            f"gradients    relative error {row['grad_rel_error']:.3g}, cosine {cosine} against the exact mean "
            f"({_count(row['grad_samples'], 'step')} compared, not timed)"
        )
    lines += _goals(row)
    if row["nonfinite_steps"]:
        lines.append(f"skipped      {row['nonfinite_steps']} steps with gradients that were not finite")
    if row.get("scaler_skipped_steps") is not None:
        lines.append(
            f"loss scale   {row['loss_scale']:,.0f} at the end; {_count(row['scaler_skipped_steps'], 'step')} skipped "
            "to find it"
        )
    lines += ["", *_traffic(row), *_link(row), ""]
    if beside := same_run(row):
        lines += [*beside, ""]
    if profile is not None:
        lines += [short_table(profile), ""]
    lines += [f"{name:12s} {path}" for name, path in written.items()]
    return "\n".join(lines)


def _quality(row: Mapping[str, Any]) -> list[str]:
    if row.get("val_next_sentence_accuracy") is not None:
        return [
            f"quality      validation PPL {row['val_ppl']:.2f} of masked tokens (loss {row['val_loss']:.4f} over "
            f"{row['val_tokens']:,} of them); training loss {row['train_loss']:.4f}, pairs included",
            f"pairs        {100 * row['val_next_sentence_accuracy']:.1f} % told rightly whether the second segment "
            f"follows the first (loss {row['val_next_sentence_loss']:.4f})",
        ]
    if row.get("draft_target") is None:
        return [
            f"quality      validation PPL {row['val_ppl']:.2f} (loss {row['val_loss']:.4f} over "
            f"{row['val_tokens']:,} tokens); training loss {row['train_loss']:.4f}"
        ]
    lines = []
    if row["train_accuracy_by_position"] is not None:
        accuracy = " ".join(f"{x:.3f}" for x in row["train_accuracy_by_position"])
        lines = [f"accuracy     {accuracy} for the tokens ahead, last training steps"]
    if row["tau"] is not None:
        lines.append(
            f"decoding     {row['tau']:.3f} tokens a pass of the target, {_count(row['tau_prompts'], 'question')}: the "
            f"draft of step {row['tau_step']} is kept"
        )
    return lines


def _sent(row: Mapping[str, Any]) -> list[str]:
    raw, sent = (row[f"bytes_{kind}_total"] / row["steps"] for kind in ("raw", "compressed"))
    if not raw:
        return []
    ratio = f" ({raw / sent:.2f}x)" if sent else ""
    return [f"sent         {in_bytes(sent)} a rank and step; uncompressed {in_bytes(raw)}{ratio}"]


def _step_time(row: Mapping[str, Any]) -> list[str]:
    if row["virtual_ranks"]:
        return [f"ranks        {row['virtual_ranks']}, all played by one process: there are no times of theirs"]
    return [
        f"step time    {row['step_time_ms_p50']:.0f} ms median, {row['step_time_ms_mean']:.0f} mean, "
        f"{row['step_time_ms_p90']:.0f} p90 (first {row['warmup_steps_excluded']} steps left out)"
    ]


def _speed(row: Mapping[str, Any]) -> list[str]:
    if row["virtual_ranks"]:
        return []
    ranks = _count(row["world_size"], "rank")
    return [f"speed        {row['tokens_per_s']:,.0f} tokens/s on {ranks}{_utilisation(row)}"]


def _reading(row: Mapping[str, Any]) -> list[str]:
    if row.get("features_read") is None:
        return []
    return [
        f"features     {row['features_read']:,} conversations read from disk, {row['features_computed']:,} "
        f"computed; {row['features_gb']:.3g} GB there"
    ]


def _utilisation(row: Mapping[str, Any]) -> str:
    if row["mfu"] is None:
        return ""
    peak, source = row["peak_flops"], row["peak_flops_source"]
    rate = f"{peak / 1e12:.0f} TFLOP/s" if peak >= 1e13 else f"{peak / 1e9:.0f} GFLOP/s"
    how = {"registers": "measured in registers"}.get(source, source)
    return f", MFU {100 * row['mfu']:.1f} % of {rate} a rank ({how})"


def _goals(row: Mapping[str, Any]) -> list[str]:
    lines, asked = [], row["config"]
    if row["reached_target"] is not None:
        outcome = "not reached"
        if row["reached_target"]:
            outcome = f"reached after {_count(row['steps_to_target_ppl'], 'step')}"
            if row["time_to_target_ppl_s"] is not None:
                outcome += f", {row['time_to_target_ppl_s']:.1f} s of training"
        lines.append(f"target       PPL {asked['target_ppl']:g} {outcome}")
    if asked["ppl_at_s"] is not None:
        ppl = row["ppl_at_fixed_time"]
        outcome = "the run was shorter" if ppl is None else f"validation PPL {ppl:.2f}"
        lines.append(f"at {asked['ppl_at_s']:g} s".ljust(13) + outcome)
    return lines


def _traffic(row: Mapping[str, Any]) -> list[str]:
    if not row["bytes_raw_total"]:
        return ["communication: none, there is one rank (--virtual_ranks 4 plays four in one process, without times)"]
    raw, sent, steps = row["bytes_raw_by_op"], row["bytes_compressed_by_op"], row["steps"]
    times = dict.fromkeys((*raw, "total"), "")
    if row["comm_time_ms_by_op"] is not None:
        milliseconds = {**row["comm_time_ms_by_op"], "total": row["comm_time_ms_total"]}
        times = {op: f"{milliseconds[op] / steps:8.1f} ms" for op in times}
    names = {op: f"{op} ({row.get(_METHOD_OF[op])})" for op in raw}
    width = max(28, 1 + max(map(len, names.values())))
    heads = f"{'each rank, each step':{width}s}{'uncompressed':>14s}{'sent':>14s}{'ratio':>9s}"
    lines = [heads + ("" if row["comm_time_ms_by_op"] is None else f"{'time':>11s}")]
    lines += [_line(names[op].ljust(width), raw[op] / steps, sent[op] / steps, times[op]) for op in raw]
    total = _line(
        "total".ljust(width), row["bytes_raw_total"] / steps, row["bytes_compressed_total"] / steps, times["total"]
    )
    lines.append(total)
    if row["compress_time_ms_total"] is not None:
        encode, decode = row["compress_time_ms_total"] / steps, row["decompress_time_ms_total"] / steps
        lines.append(f"encoding {encode:.1f} ms and decoding {decode:.1f} ms a step")
    if row["comm_ratio"] is not None:
        lines.append(f"communication takes {100 * row['comm_ratio']:.1f} % of the step")
    if row["bytes_source"] == "computed":
        source = "bytes and times from a profile of a few steps"
        if row["virtual_ranks"]:
            source = "bytes of FSDP2's own on gloo"
        elif _is_arranged(row):
            source = "bytes computed from the sizes of what they carry"
        lines.append(f"stock collectives: {source}")
    if sent.get("reduce_scatter", 0) > 1.5 * raw.get("reduce_scatter", 0):
        lines.append("gloo's own reduce-scatter is an all-reduce: it sends twice the bytes that identity needs")
    return lines


_METHOD_OF = {
    "reduce_scatter": "compress_method",
    "all_gather": "param_compress_method",
    "all_reduce": "compress_method",
    "activations": "activation_method",
    "activation_gradients": "activation_grad_method",
    "outer": "outer_method",
    "optimizer": "optimizer_method",
}


def _is_arranged(row: Mapping[str, Any]) -> bool:
    return any(row.get(name) for name in ("tp", "pp", "dp_replicas"))


def _ranks(row: Mapping[str, Any]) -> list[str]:
    """How ranks that are arranged share the work."""
    if not _is_arranged(row):
        return []
    parts = []
    if row.get("pp"):
        parts.append(f"{row['pp']} stages of a pipeline ({row['pp_schedule']})")
    if row.get("tp"):
        parts.append(f"{row['tp']} divide each block ({row['layout']}, shares {_shares(row['shares'])})")
    dp = row["world_size"] // ((row.get("pp") or 1) * (row.get("tp") or 1))
    copies = row.get("dp_replicas") or 1
    if dp > 1:
        parts.append(f"{dp} data parallel" + (f" with {copies} copies of the weights" if copies > 1 else ", sharded"))
    return [f"ranks        {'; '.join(parts)}"]


def _local_steps(row: Mapping[str, Any]) -> list[str]:
    """How replicas that train by themselves synchronised."""
    if row.get("outer") is None:
        return []
    every = _count(row["outer_every"], "step")
    method = "torch's all-reduce" if row["outer_method"] == "none" else row["outer_method"]
    method += "" if row["outer_gather_method"] == "none" else f" + {row['outer_gather_method']}"
    config = row.get("config") or {}
    how = f"{row['outer']}, synchronised every {every} by {method}"
    if (apart := config.get("outer_by_gradient", "none")) != "none":
        by_gradient = f"by their gradients every {_count(_gradient_every(config), 'step')}"
        if (own := config.get("outer_gradient_compress", "none")) != "none":
            by_gradient += f" by {own}"
        how = f"none, all {by_gradient} by {method}" if apart == "all" else f"{how}, {apart} {by_gradient}"
    return [
        f"local steps  {how}: {row['outer_bits']:.3g} bits a "
        f"parameter and step; outer state of {in_bytes(row['outer_bytes'])} a rank"
    ]


def _gradient_every(config: Mapping[str, Any]) -> int:
    return int(config["outer_gradient_every"] or config["outer_every"])


def _shares(shares: list[float]) -> str:
    return ":".join(f"{share:g}" for share in shares)


def _link(row: Mapping[str, Any]) -> list[str]:
    if row.get("interface_bytes_total") is None:
        return []
    asked, measured = row["link_rate_asked"], row["link_rate_measured"]
    rate = f"{_rate(asked)} asked" if asked else "no limit"
    if measured:
        rate += f", {_rate(measured)} measured"
    sent = in_bytes(row["interface_bytes_total"] / max(row["interface_steps"], 1))
    lines = [f"link: {rate}, delay {row['link_delay_ms']:g} ms; its interface sent {sent} a step, headers included"]
    if row["bytes_trusted"] is False:
        lines.append("UNTRUSTED: the interface's payload and the bytes counted above are more than 1 % apart")
    return lines


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:.3g} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.3g} Mbit/s"


def _line(name: str, raw: float, sent: float, time: str) -> str:
    return f"{name}{in_bytes(raw):>14s}{in_bytes(sent):>14s}{raw / sent if sent else 0:>8.2f}x{time:>11s}".rstrip()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")
