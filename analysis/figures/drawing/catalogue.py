"""Every label of the figures, in English and Chinese: the one catalogue.

A label is looked up by its English text, so that figures read in plain English; braces are filled in after.
"""

from __future__ import annotations

from typing import Final

CHINESE: Final[dict[str, str]] = {
    # quality
    "compression of all traffic (against {dtype})": "总通信压缩比（相对 {dtype}）",
    "compression of gradients (against {dtype})": "梯度压缩比（相对 {dtype}）",
    "compression of parameters (against {dtype})": "参数压缩比（相对 {dtype}）",
    "change of validation PPL, %": "验证集困惑度变化（%）",
    "hollow: not decided at {bar:g} %": "空心：在 {bar:g} % 处尚无定论",
    "a bar that reaches the edge goes on beyond it": "到达边缘的竖线在图外继续延伸",
    "failed before any byte was counted: {arms}": "尚未计入任何字节即失败：{arms}",
    "{ratio:g}x or more, {change:g} % worse at most": "压缩至少 {ratio:g} 倍，困惑度至多升高 {change:g} %",
    "diverged": "发散",
    "diverged\nor missing": "发散\n或缺失",
    "training loss, nats a token": "训练损失（nat/词元）",
    "validation loss, nats a token": "验证损失（nat/词元）",
    "loss above that of {baseline}, nats": "比 {baseline} 高出的损失（nat）",
    "tokens trained on": "训练词元数",
    "training time, s": "训练时间（秒）",
    "one run an arm": "每种方法一次运行",
    "mean and range of {seeds} seeds": "{seeds} 个随机种子的均值与范围",
    "moving mean of {points} points": "{points} 点滑动平均",
    "cross: a run failed or diverged": "叉号：有运行失败或发散",
    "error of the gradient, relative": "梯度相对误差",
    "cosine with the exact gradient": "与精确梯度的余弦",
    "residual, relative to the gradient": "残差（相对梯度）",
    "what a rank may send": "每个进程的发送带宽",
    "time to PPL {ppl:.4g}, s": "达到困惑度 {ppl:.4g} 的时间（秒）",
    "target: {change:g} % above the baseline's PPL": "目标：困惑度比基线高 {change:g} %",
    "median over seeds, bars from best to worst": "种子间中位数，竖线从最好到最差",
    "filled: step measured, hollow: predicted": "实心：步时为实测，空心：步时为预测",
    "step measured": "步时为实测",
    "step predicted": "步时为预测",
    "never": "未达到",
    "never: {arms}": "未达到：{arms}",
    "no limit": "不限速",
    "acceptance length, tokens a pass": "接受长度（每次前向的词元数）",
    "bars: 95 % interval of the difference to the baseline, by seed": "竖线：与基线逐种子之差的 95 % 区间",
    "hollow: parameters are compressed, too": "空心：参数也被压缩",
    # the system's diagram
    "One training step of an FSDP2 unit on W ranks": "FSDP2 单元在 W 个进程上的一个训练步",
    "parameters:\nown shard, fp32": "参数：\n本地分片，fp32",
    "all-gather": "全收集\nall-gather",
    "forward": "前向传播",
    "free": "释放",
    "backward": "反向传播",
    "reduce-scatter": "归约散射\nreduce-scatter",
    "optimizer:\nown shard": "优化器：\n本地分片",
    "next step": "下一步",
    "Parameters": "参数",
    "Gradients": "梯度",
    "own shard\n[n / W]": "本地分片\n[n / W]",
    "encode": "编码",
    "exchange\nof bytes": "交换\n字节",
    "decode\nW rows": "解码\nW 行",
    "decode,\nfp32 sum": "解码，\nfp32 求和",
    "whole\nunit [n]": "完整\n单元 [n]",
    "a row a rank\n[W, n / W]": "每进程一行\n[W, n / W]",
    "mean\n(FSDP2)": "平均\n（FSDP2）",
    "mean:\n[n / W]": "平均：\n[n / W]",
    "residual: what\nwas left out": "残差：\n未发送的部分",
    "error feedback": "误差反馈",
    "ledger: bytes by kind, times": "账本：各类字节数与时间",
    # axes that several figures share
    "step": "步数",
    # times and bytes
    "bandwidth of a rank": "每个进程的带宽",
    "step, ms": "每步时间（毫秒）",
    "gradients + parameters": "梯度 + 参数",
    "tokens/s": "每秒词元数",
    "computation and the rest": "计算及其他",
    "encoding": "编码",
    "transfer and waiting": "传输与等待",
    "decoding": "解码",
    "encoding and decoding": "编码与解码",
    "share of the step, %": "占每步时间的百分比",
    "bits a parameter and step": "每参数每步比特数",
    "reduce-scatter (gradients)": "reduce-scatter（梯度）",
    "all-gather (parameters)": "all-gather（参数）",
    "all-reduce (replicas)": "all-reduce（副本）",
    "activations": "激活",
    "gradients of activations": "激活的梯度",
    "synchronisations after local steps": "本地步之后的同步",
    "values": "数值",
    "indices": "下标",
    "scales, lengths, padding": "缩放因子、长度、填充",
    "uncoded": "未编码",
    "faster below this bandwidth": "低于此带宽时更快",
    "than none": "快于 none",
    "than bf16": "快于 bf16",
    "at any": "任何带宽",
    "world size": "进程数",
    "virtual ranks": "虚拟进程",
    "validation PPL": "验证集困惑度",
    "communication, % of the step": "通信占每步时间的百分比",
}


def say(text: str, language: str, **values: object) -> str:
    """The text in ``language`` ("en" or "zh"). KeyError when the catalogue lacks it, which is a mistake in a figure's
    code."""
    template = CHINESE[text] if language == "zh" else text
    return template.format(**values) if values else template
