"""What is refused before any rank is started, by whatever starts ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_lab import launcher
from fsdp_lab.settings.__main__ import main
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked

WRONG = [
    (["--comm_compress", "topq"], "comm_compress: unknown compression method 'topq' (did you mean 'topk'?)"),
    (["--method", "int8 blocksize=64"], "comm_compress: int8: unknown key 'blocksize' (did you mean"),
    (["--comm_compress", "topk ratio=7"], "comm_compress: topk: ratio = 7.0: must be above 0 and at most 1"),
    (["--comm_compress", "delta"], "comm_compress: delta is for parameters only"),
    (["--param_compress", "topk"], "param_compress: topk with these settings does not bring every parameter back"),
    (["--param_compress", "int9"], "param_compress: unknown compression method 'int9' (did you mean 'int8'?)"),
    (["--model", "gpt2-nanno"], "model: no preset 'gpt2-nanno' (did you mean gpt2-nano?)"),
    (["--data_path", "no/such.json"], "data_path: no/such.json is not there"),
    (["--data_path", "/"], "data_path: / is a folder, not a file"),
    (["--data_path", 3000 * "a"], f"data_path: {200 * 'a'} cannot be looked at (File name too long)"),
    (["--data_path", "/etc/passwd/x"], "data_path: /etc/passwd/x cannot be looked at (Not a directory)"),
    (["--data_mix", '{"": 1}'], "data_mix:  is not there"),
    (["--data_mix", '{"embedded": 1, "no/such.json": 1}'], "data_mix: no/such.json is not there"),
    (["--model_dir", "no/such"], "model_dir: no folder no/such"),
    (["--resume", "no/such"], "resume: no folder no/such"),
    (["--virtual_ranks", "1"], "virtual_ranks: 1 virtual rank is a real one"),
    (["--model_dir", "/", "--vocab_size", "300"], "vocab_size: model_dir brings its own tokenizer"),
    (["--comm_config_json", '{"ratio": 0.1}'], "comm_compress: none takes no settings, got ['ratio']: name the method"),
]


@pytest.mark.parametrize(
    ("flags", "complaint"), WRONG, ids=lambda part: " ".join(part)[:40] if isinstance(part, list) else ""
)
def test_what_is_wrong(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "get"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--", *flags])
        assert stop.value.code == 2
        assert f"settings: a problem with the settings\n  {complaint}" in capsys.readouterr().err
    assert main(["show", "--", *flags]) == 0, "to look at settings is no start"


def test_all_complaints_come_together() -> None:
    flags = [word for given, _ in WRONG[:1] + WRONG[5:8] for word in given]
    with pytest.raises(ConfigError) as raised:
        checked(TrainConfig, [*flags, "--batch_sise", "4", "--seed", "x", "--virtual_ranks", "1"])
    said = str(raised.value)
    assert "7 problems" in said.splitlines()[0]
    for _, complaint in WRONG[:1] + WRONG[5:8]:
        assert complaint in said


def test_the_right_things_pass(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a"}\n')
    flags = ["--comm_compress", "int4 hadamard + delta", "--model", "gpt2", "--data_path", str(text)]
    assert checked(TrainConfig, flags).comm.param_compress == "delta"
    assert checked(TrainConfig, ["--resume", "never"]).run.resume == "never"


def test_the_users_own_example() -> None:
    said = ["--comm_compress", "int8", "--comm_config_json", '{"num_bits": 8}', "--param_compress", "int8 num_bits=5"]
    assert checked(TrainConfig, said).comm.comm_config_json == {"num_bits": 8}


def test_only_methods_that_are_named_cost_an_import_of_torch() -> None:
    program = (
        "import sys\nfrom fsdp_lab.settings.__main__ import main\n"
        "assert main(['check', '--', '--model', 'gpt2', '--batch_size', '2', '--comm_compress', 'none']) == 0\n"
        "try: main(['check', '--', '--batch_size', 'x', '--model', 'y'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
        "assert main(['check', '--', '--comm_compress', 'bf16']) == 0\nassert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("module", "flags", "complaint"),
    [
        ("fsdp_lab.train", ["--comm_compress", "topq"], "comm_compress: unknown compression method 'topq'"),
        ("fsdp_lab.eagle.train", ["--comm_compress", "topq", "--data_path", "no"], "3 problems with the settings"),
    ],
)
def test_the_launcher_refuses_before_it_starts_ranks(
    module: str,
    flags: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launcher, "run", lambda arguments: pytest.fail("ranks were started"))
    with pytest.raises(SystemExit) as stop:
        launcher.launch(["--standalone", "--nproc-per-node=2", "-m", "--", module, *flags])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{module}: ")
    assert complaint in said


def test_links_refuses_before_it_makes_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.links import command as links

    with pytest.raises(SystemExit) as stop:
        links.main(["--rate", "1gbit", "--", "--comm_compress", "topq", "--model", "gtp2"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "did you mean 'topk'?" in said
    assert "did you mean gpt2?" in said


def test_a_masked_model_of_several_corpora_is_refused() -> None:
    with pytest.raises(ConfigError, match="pairs of segments from one text"):
        checked(TrainConfig, ["--model", "bert-nano", "--data_mix", '{"embedded": 1}'])
    checked(TrainConfig, ["--model", "gpt2-nano", "--data_mix", '{"embedded": 1}'])
