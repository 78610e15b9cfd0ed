# ruff: noqa: E501 - Chinese letters are twice as wide, and a sentence in pieces is hard to read
"""The Chinese of the report's headings, sentences and cells, by their English (`report.chinese` looks them up).

Braces stand for what rows put there. A test holds that the holes of both languages have the same names.
"""

from __future__ import annotations

from typing import Any, Final

from analysis.report.entries import (
    OF_COMPARISON,
    OF_DRAFTS,
    OF_LINKED,
    OF_LINKS,
    OF_MACHINE,
    OF_WORLDS,
    SYSTEM,
    Entry,
)
from analysis.report.opening_words import ABOUT, TITLE

# cells of tables, values of facts, names of checks: looked up whole
CELLS: Final[dict[str, str]] = {
    **{"yes": "是", "no": "否", "holds": "达标", "holds, fp32 only": "达标（仅相对 fp32）", "undecided": "未定"},
    **{"no: ratio": "否：压缩比不足", "no: PPL": "否：困惑度", "no: failed": "否：运行失败", "unknown": "未知"},
    **{"baseline": "基线", "missing": "缺失", "all": "全部", "sends too much": "发送过多", "lost": "失败"},
    **{"arm": "方法", "bits": "比特", "tokens/s": "词元/秒", "communication": "通信占比", "PPL": "困惑度"},
    **{"change": "变化", "bar": "门槛", "seeds": "种子", "failed": "失败", "setting": "设置", "arms": "方法数"},
    **{"runs": "运行数", "verdict": "结论", "settings": "设置", "rows": "数据行", "selected": "选择"},
    **{"hardware": "硬件", "source": "代码版本", "versions": "软件版本", "data": "数据", "ranks": "进程数"},
    **{"tuning": "调参", "failed runs": "失败的运行", "None.": "无。", "filter rows": "筛选行"},
    **{"gradients, fp32": "梯度，对 fp32", "all, fp32": "总计，对 fp32", "all, bf16": "总计，对 bf16"},
    **{"best at its bits": "同比特最佳", "what is missing": "欠缺", "reached": "达到", "times as fast": "快几倍"},
    **{"runs that long": "够长的运行", "acceptance length": "接受长度", "two paired seeds or more": "至少两对种子"},
    "compress what else is sent, too": "其余传输的内容也要压缩",
    **{"compress the other direction, too": "另一方向也要压缩", "no commit known": "提交未知"},
    **{"a baseline to compare with": "可比较的基线", "runs for every seed of the baseline": "基线每个种子的运行"},
    **{"bf16 and fp32 baselines": "有 bf16 与 fp32 基线", "fp32 baseline": "有 fp32 基线"},
    **{"bf16 baseline": "有 bf16 基线", "no plain baseline": "没有未压缩的基线", "no baseline": "无基线"},
    # checks
    **{"one seed": "只有一个种子", "few seeds": "种子太少", "baseline failed": "基线失败", "alone": "单独一组"},
    **{"no identity on gloo": "gloo 上没有 identity", "no 16 bit baseline": "没有 16 位基线"},
    **{"seeds without 16 bits": "有种子缺 16 位基线", "different tokens": "词元不同", "other stream": "数据流不同"},
    **{"other start": "起始权重不同", "pairs of two processors": "成对的运行用了两种处理器"},
    **{"seeds not shared": "种子不共有", "missing runs": "缺少运行", "repeated runs": "重复运行"},
    **{"other candidates": "候选取值不同", "other tuning seeds": "调参种子不同"},
    **{"unequal outer rates": "外层学习率的尝试次数不等"},
    **{"unequal tuning": "调参次数不等", "best at the edge": "最优值在边缘", "tuned otherwise": "另一取值更好"},
    **{"mixed hardware": "硬件不一", "mixed versions": "版本不一", "dirty checkout": "有未提交的修改"},
    "mixed allocators": "内存分配器不一",
    **{"other schedule": "调度不同", "better than uncompressed": "优于未压缩", "overlapping runs": "运行重叠"},
    **{"too accurate": "精确得可疑", "untrusted bytes": "字节数不可信", "warm up counted": "计入了预热"},
}
_ENTRIES: Final[tuple[Entry[Any], ...]] = (
    *OF_COMPARISON,
    *OF_DRAFTS,
    *OF_LINKED,
    *OF_LINKS,
    *OF_MACHINE,
    *OF_WORLDS,
    SYSTEM,
)
_FIGURES: Final[dict[str, tuple[str, str]]] = {  # name: title, how it is read
    "quality_against_compression": (
        "质量与压缩比，全部通信",
        "验证集困惑度相对基线的变化（逐种子），横轴为 float32 字节数与实际发送字节数之比。竖线：95 % 区间；阶梯线：均值的帕累托前沿；"
        "细线：同一方法的不同强度；阴影：压缩 2 倍以上且困惑度升高不超过 1 %。若有方法两个方向都压缩，只压缩一个方向的方法另有其图。",
    ),
    "quality_against_gradient_compression": (
        "质量与压缩比，仅梯度",
        "同上，横轴为 reduce-scatter 的压缩比，只含参数不压缩的方法。",
    ),
    "quality_against_parameter_compression": (
        "质量与压缩比，仅参数",
        "同上，横轴为 all-gather 的压缩比，只含梯度不压缩的方法。",
    ),
    "step_time": (
        "每步时间与每秒词元数",
        "每步平均时间的各部分，对种子取平均；须线：95 % 区间。传输包含等待较慢的进程；没有钩子（none）时由性能剖析给出纯传输时间。",
    ),
    "communication_share": ("通信占比", "传输（含等待）和编解码各占每步时间的多少。"),
    "bytes": (
        "各方向各类字节",
        "每个进程每步为每个参数发送的比特数，全部通信：8 x 字节 / 参数 x W / (W - 1)。未编码：没有钩子的集合通信。",
    ),
    "break_even": (
        "盈亏平衡带宽（预测）",
        "低于此带宽时，省下的字节所需的发送时间多于编解码时间：由数据行的字节数和编解码时间算出，假设毫无重叠且链路占满。没有标记的方法不节省。",
    ),
    "loss_curves": ("训练损失", "对种子取平均并平滑；阴影：最小与最大的种子。第二幅：逐种子高出基线多少。"),
    "validation_loss": ("验证损失随训练时间", "每次评估对种子取平均，不平滑；阴影：最小与最大的种子。"),
    "gradient_error": (
        "梯度与精确值相差多少",
        "抽样步上归约后的梯度相对精确均值的误差与余弦，以及误差反馈留存量的范数与梯度范数之比。",
    ),
    "acceptance_length": (
        "接受长度与字节数",
        "在留出的问题上目标模型每次前向的词元数，对种子取平均，横轴为每参数每步比特数。竖线：与基线（横线）逐种子之差的 95 % 区间。空心：参数也被压缩。",
    ),
    "time_to_quality": (
        "各链路上达到质量的时间",
        "达到比基线各次运行中最高的最终困惑度再高 1 % 所需步数，乘以该链路上每步的时间：有同样工作的行则用实测，否则由标定预测。顶部：从未达到。",
    ),
    "world_sizes": (
        "随进程数的变化",
        "对种子取平均，附 95 % 区间。每个进程的批大小处处相同。变化：相对同样进程数的基线，逐种子。空心：一个进程内的虚拟进程，没有时间。",
    ),
    "links": ("每步时间与带宽（实测）", "每条模拟链路上每步时间的中位数，再对种子取中位数。"),
    "predicted_step_time": ("每步时间与带宽（预测）", "线：本机标定下的步时模型。点：链路矩阵的实测。"),
    "predicted_break_even": ("盈亏平衡带宽（步时模型预测）", "低于此带宽时，每步比 none 或双向 bf16 更快。"),
    "system": ("压缩在 FSDP2 一步中的位置", "参数在前向之前收集，反向之前再收集一次；梯度在反向之后归约。"),
}
_OF_FIGURES = {
    text: chinese
    for entry in _ENTRIES
    for text, chinese in zip((entry.title, entry.about), _FIGURES[entry.name], strict=True)
}
_ANSWER: Final[dict[str, str]] = {
    TITLE: "质量与比特数",
    ABOUT: (
        "验证集困惑度的变化（逐种子），横轴为每个进程每步为每个参数发送的比特数（两个方向）。实心：达标，或基线；空心：不达标，或种子数不足以判定；"
        "淡色：比较不公平。竖线：95 % 区间；阶梯线：公平比较的方法的前沿。指向标记（或按 Tab）可读该方法，点击则只留下同一方法。"
    ),
    "The answer": "结论",
    "Communication compression: report": "通信压缩：报告",
    "PPL against {baseline}, %": "困惑度相对 {baseline}，%",
    "{title}: ways to compress that hold the bar ({bar}): {holding} of {count}.": (
        "{title}：{count} 种压缩方法中有 {holding} 种达标（{bar}）。"
    ),
    "at least {ratio} times fewer bytes than fp32, PPL at most {margin} % above that of {baseline}": (
        "相对 fp32 至少压缩 {ratio} 倍，困惑度至多比 {baseline} 高 {margin} %"
    ),
    "Fewest bits among them: {best}.": "其中比特最少的：{best}。",
    "{arm}, {bits} bits a parameter and step, {fp32}x fewer than fp32 and {bf16}x fewer than bf16, PPL {change} over "
    "{pairs} pairs of runs (95 % interval in brackets)": (
        "{arm}，每参数每步 {bits} 比特，相对 fp32 压缩 {fp32} 倍，相对 bf16 压缩 {bf16} 倍，困惑度 {change}，共 {pairs} 对运行（方括号内为 95 % 区间）"
    ),
    "One bound in twenty is wrong by chance, and {count} were looked at: try it on new seeds.": (
        "每二十个界限就有一个因偶然而错，而这里看了 {count} 个：请用新的种子再试。"
    ),
    "So none is recommended here.": "因此这里不推荐任何方法。",
    "Within the bar, but by intervals too wide to be quoted (run more seeds): {arms}.": (
        "在门槛之内，但区间太宽，不足以引用（需更多种子）：{arms}。"
    ),
    "The seeds do not decide it for {arms}.": "种子数不足以判定：{arms}。",
    "Not compared fairly, so nothing is claimed of them (faint in the figure): {count}.": (
        "比较不公平、因此不作结论的（图中淡色）：{count} 种。"
    ),
    "Failed or diverged in some run: {arms}.": "有运行失败或发散：{arms}。",
    "Only the {count} arms with the fewest bits were judged.": "只判定了比特最少的 {count} 种方法。",
    "This is known of this setting alone: its model, data, length and learning rate.": (
        "以上只适用于这一设置：其模型、数据、训练长度与学习率。"
    ),
    "{more} more comparisons follow below, each with its own verdict.": "下面还有 {more} 组比较，各有结论。",
    "{title}: there is no baseline, so nothing is claimed; give one with --baseline.": (
        "{title}：没有基线，因此不作结论；请用 --baseline 指定。"
    ),
    "There is no comparison of language models in these rows.": "这些数据行中没有语言模型的比较。",
    "{first} and {more} more": "{first} 等另 {more} 个",
    # what is said of an arm that is pointed at
    "{bits} bits a parameter and step, {ratio}x fewer than fp32": "每参数每步 {bits} 比特，相对 fp32 压缩 {ratio} 倍",
    "PPL {change}, {pairs} pairs": "困惑度 {change}，{pairs} 对",
    "the baseline": "基线",
    "holds the bar": "达标",
    "within the bar, interval too wide": "在门槛之内，区间太宽",
    "not compared fairly": "比较不公平",
    "does not hold the bar": "不达标",
    "runs failed": "有运行失败",
    "its interval is wider than the margin": "区间比容许的差还宽",
    "costs more than the margin": "代价超出容许",
    "the seeds do not decide it at {margin} %": "种子数不足以在 {margin} % 处判定",
    "{lost} of {runs} runs failed or diverged": "{runs} 次运行中有 {lost} 次失败或发散",
}
_PARTS: Final[dict[str, str]] = {
    "What speaks against these comparisons": "不利于这些比较的情况",
    "What was compared": "比较了什么",
    "What is missing in the figures": "图中缺少什么",
    "How it works": "工作原理",
    "Along world sizes": "随进程数",
    "Along links": "随链路",
    "Across settings": "跨设置",
    "Change of PPL in each setting, against its own baseline": "各设置下的困惑度变化（相对该设置自己的基线）",
    "Predicted: {model}, {world} ranks": "预测：{model}，{world} 个进程",
    "{setting}, against {baseline}": "{setting}，相对 {baseline}",
    "{model}, {world} ranks, {steps} steps": "{model}，{world} 个进程，{steps} 步",
    "Comparisons, the largest first": "各组比较，最大的在前",
    "Short names": "简称",
    "This report was made by": "生成本报告的命令",
    "Not the runs above: times of a calibrated machine and model, behind links of any bandwidth.": (
        "不是上述运行：由标定过的机器与模型得出的、任意带宽链路上的时间。"
    ),
    "{errors} and {warnings} found in {rows}. What an error concerns (quality, times or bytes) is not to be compared.": (
        "在 {rows}中发现 {errors}、{warnings}。错误所涉及的（质量、时间或字节）不可比较。"
    ),
    "{count} errors": "{count} 个错误",
    "{count} error": "{count} 个错误",
    "{count} warnings": "{count} 个警告",
    "{count} warning": "{count} 个警告",
    "{count} rows": "{count} 行",
    "{count} of {files}": "{count} 行，来自 {files}",
    "Lines left out: {count}.": "略去的行：{count}。",
    "{setting}: {holding} of {count} arms hold the bar (ratio {ratio} or more, PPL within {margin} %)": (
        "{setting}：{count} 种方法中有 {holding} 种达标（压缩比至少 {ratio}，困惑度在 {margin} % 之内）"
    ),
    "{setting}: time to quality, quality at a time": "{setting}：达到质量的时间，与定时的质量",
    "{setting}: top-1 accuracy, against {baseline}": "{setting}：top-1 准确率，相对 {baseline}",
    **{"accuracy, %": "准确率，%", "change, points": "变化（百分点）"},
    "settings that differ from the first comparison's": "与第一组比较不同的设置",
    "{arms}, baseline {baseline}": "{arms}，基线 {baseline}",
    "{count} an arm: {seeds}": "每种方法 {count} 个：{seeds}",
    "{least} to {most} an arm, of {seeds}": "每种方法 {least} 到 {most} 个，取自 {seeds}",
    "{data}, {tokens} tokens seen": "{data}，训练 {tokens} 词元",
    "none: {settings} for every arm": "无：所有方法均为 {settings}",
    "{names}: {budget} candidates an arm; chosen by {quality}: {chosen}": (
        "{names}：每种方法 {budget} 个候选；按{quality}选择：{chosen}"
    ),
    "validation loss": "验证损失",
    "{cores} cores of {cpu}, {memory} GB, host {host}": "{cpu} 的 {cores} 个核，{memory} GB，主机 {host}",
    "{commit} with changes": "{commit}（有修改）",
    "PPL at least {change} % worse": "困惑度至少差 {change} %",
    "PPL may be {change} % worse: more seeds": "困惑度可能差 {change} %：需更多种子",
    "perhaps, or {arm}": "也许，或 {arm}",
    "no: {arm}": "否：{arm}",
    "lost: seed {seeds}": "缺失：种子 {seeds}",
    "diverged: its loss is not finite": "发散：损失不是有限数",
    # verdicts
    "{verdict} (to note: {checks})": "{verdict}（注意：{checks}）",
    "fair: {seeds} seeds, same tokens, {against}": "公平：{seeds} 个种子，词元相同，{against}",
    "fair: {least} to {most} seeds, same tokens, {against}": "公平：{least} 到 {most} 个种子，词元相同，{against}",
    "fair: {seeds} seed, same tokens, {against}": "公平：{seeds} 个种子，词元相同，{against}",
    "fair: no error found": "公平：未发现错误",
    "NOT FAIR: {checks}": "不公平：{checks}",
    "NOT FAIR: {checks}; else {rest}": "不公平：{checks}；此外{rest}",
    "quality and bytes {results}; times {times}": "质量与字节：{results}；时间：{times}",
    "one arm only: nothing is compared": "只有一种方法：没有比较",
}
_FINDINGS: Final[dict[str, str]] = {
    "one seed, so no interval: {arms}": "只有一个种子，因此没有区间：{arms}",
    "fewer than {count} seeds: {arms}": "少于 {count} 个种子：{arms}",
    "none of its {count} arms is the baseline ({arms})": "{count} 种方法中没有基线（{arms}）",
    "{arm} failed with seed {seeds}, which can be paired with nothing": "{arm} 在种子 {seeds} 上失败，无法配对",
    "on gloo stock FSDP2 sends its gradients twice, and no identity run shows what sending them once costs": (
        "在 gloo 上原生 FSDP2 把梯度发送两次，而没有 identity 运行显示只发送一次的代价"
    ),
    "no arm carries gradients and parameters in 16 bits, which is what anybody has without compression": (
        "没有方法以 16 位传输梯度和参数，而这是不压缩也能做到的"
    ),
    "no elements_by_op, so no ratio against bf16: {arms}": "没有 elements_by_op，因此没有对 bf16 的压缩比：{arms}",
    "{arm} has no finished run with seeds that others are compared over: {arms}": (
        "{arm} 在其他方法所比较的种子上没有完成的运行：{arms}"
    ),
    "{name} differs: {values}": "{name} 不一致：{values}",
    "tokens_seen differs among the runs of seed {seed}: {values}": "种子 {seed} 的各运行 tokens_seen 不同：{values}",
    "data_digest differs among the runs of seed {seeds}: other sequences, or another order": (
        "种子 {seeds} 的各运行 data_digest 不同：序列不同或顺序不同"
    ),
    "start_digest differs among the runs of seed {seeds}: they began with different weights": (
        "种子 {seeds} 的各运行 start_digest 不同：起始权重不同"
    ),
    "cpu differs among the runs of seed {seeds}: their last digits differ, too": (
        "种子 {seeds} 的各运行 cpu 不同：末位数字也会不同"
    ),
    "unknown whether the runs saw the same sequences, no data_digest: {arms}": (
        "没有 data_digest，不知各运行是否见过同样的序列：{arms}"
    ),
    "no seed in common with {arm}: {arms}": "与 {arm} 没有共同的种子：{arms}",
    "seeds that {arm} has no run of, which are in no paired figure: {arms}": (
        "{arm} 没有运行过的种子，不进入任何配对的数字：{arms}"
    ),
    "runs are missing, dropped or never made: {arms}": "缺少运行，被丢弃或从未运行：{arms}",
    "runs that failed and were made again, of which the one that ended well counts: {arms}": (
        "失败后重做的运行，以顺利结束的为准：{arms}"
    ),
    "the same seed again with another {quality}: {arms}": "同一种子再次运行，{quality} 不同：{arms}",
    "arms had unequal numbers of candidates ({tried})": "各方法的候选数不等（{tried}）",
    "arms had unequal numbers of outer rates and momenta ({tried}); those without an outer step have none": (
        "各方法的外层学习率与动量的尝试数不等（{tried}）；没有外层步的方法没有这两项"
    ),
    "arms differ in what was tuned, and nothing else was tried: {chosen}": "各方法所调的值不同，而没有试过别的：{chosen}",
    "the best value lies on the edge of those tried: {arms}": "最优值在所试范围的边缘：{arms}",
    "another candidate did better on the seeds that it was tried with: {arms}": "另一候选在它试过的种子上更好：{arms}",
    "{count} runs of a checkout with uncommitted changes: {names}": "{count} 次运行的代码有未提交的修改：{names}",
    "compared with no baseline ({arms}), because of {what}": "没有可比较的基线（{arms}），因为 {what}",
    "{count} runs shared their machine with another: {pairs}": "{count} 次运行与别的运行同时占用机器：{pairs}",
    "its step times leave no warm-up step out": "步时没有排除预热步",
}
ADVICE: Final[dict[str, str]] = {
    "try the same for every arm that has an outer step, and say how many": "请为每个有外层步的方法试同样的取值，并说明试了多少",
    "run {count} seeds or more": "请运行至少 {count} 个种子",
    "run none with the same settings, or give --baseline": "请以同样设置运行 none，或给出 --baseline",
    "find out why and run it again": "请查明原因后重新运行",
    "run identity + identity, and compare times and bytes with the better of the two": (
        "请运行 identity + identity，并与两者中较好的比较时间和字节"
    ),
    "run bf16 + bf16 with the same settings": "请以同样设置运行 bf16 + bf16",
    "run again with this version, or migrate the file": "请用此版本重新运行，或转换文件",
    "run {arm} with those seeds, or compare over the seeds that it has (--select seed=...)": (
        "请用这些种子运行 {arm}，或只在它有的种子上比较（--select seed=...）"
    ),
    "run {arm} with those seeds": "请用这些种子运行 {arm}",
    "do not compare: run the odd ones again with the data of the others": "不可比较：请用其他运行的数据重做不一致者",
    "do not compare: find out which settings, files or versions dealt other data": (
        "不可比较：请查明哪些设置、文件或版本给出了别的数据"
    ),
    "do not compare: run the odd ones again from the weights of the others": (
        "不可比较：请从其他运行的起始权重重做不一致者"
    ),
    "expect wider intervals, or run both halves of a pair on one kind of processor": (
        "区间会更宽；或在同一种处理器上运行成对的两次"
    ),
    "nothing, if settings and version are the same; else run again with this version": (
        "若设置与版本相同则不必处理；否则请用此版本重新运行"
    ),
    "run them, or compare over shared seeds only (--select seed=...), and say so": (
        "请补齐运行，或只在共有种子上比较（--select seed=...）并注明"
    ),
    "find out whether the machine or the method failed; if the method, count it as failed": (
        "请查明是机器还是方法失败；若是方法，算作失败"
    ),
    "find what changed between the runs; the last one is used": "请查明各运行之间有何变化；以最后一次为准",
    "try the same values for every arm, the baseline among them, and say how many": (
        "请对每种方法（含基线）试同样的值，并说明试了多少"
    ),
    "try values beyond it": "请试更远的值",
    "run that one with all seeds": "请用全部种子运行该候选",
    "compare times within one machine only": "只可在同一台机器内比较时间",
    "compare times of one allocator": "只可比较同一内存分配器下的时间",
    "run all arms with one commit and one environment": "请用同一提交和同一环境运行所有方法",
    "commit first, then run": "请先提交再运行",
    "give every arm, the baselines too, the same fsdp_prefetch, fsdp_reshard and fsdp_overlap_reduce": (
        "请让每种方法（含基线）使用同样的 fsdp_prefetch、fsdp_reshard 和 fsdp_overlap_reduce"
    ),
    "look for another task: other tokens, settings or evaluation; or tune the baseline better": (
        "请查看是否任务不同：词元、设置或评估；或更好地调基线"
    ),
    "run it with the settings of the others, or a baseline with its own": "请用其他方法的设置运行它，或为它运行基线",
    "do not compare their times; run one after another for those": "不可比较其时间；请逐个运行",
    "find what the ledger misses; do not use its ratios": "请查明账本漏了什么；不要使用其压缩比",
    "run more steps; do not compare its times": "请运行更多步；不可比较其时间",
    "run 20 steps or more, which leaves five out": "请运行至少 20 步，其中排除五步",
}
TEMPLATES: Final[dict[str, str]] = {
    **_OF_FIGURES,
    **_ANSWER,
    **_PARTS,
    **_FINDINGS,
    **ADVICE,
    **{english[:1].upper() + english[1:]: chinese for english, chinese in ADVICE.items()},
}
