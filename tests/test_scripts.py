"""The start scripts, with a stand-in for .venv's interpreter that writes down what it is asked to do."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = ("run_safe_training.sh", "run_tests.sh", "pyproject.toml", "constraints.txt")

# Calls are written down one a line, arguments quoted; settings are read by the real program.
STAND_IN = r"""#!/usr/bin/env bash
{ printf '%q ' "$@"; echo; } >>"$CALLS"
case "$*" in
    *"-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
    *"-m pip --version"*) ;;
    *"-m pip install"*) sleep "${PIP_SECONDS:-0}"; exit "${PIP_EXIT:-0}" ;;
    *"import venv, ensurepip"*) exit "${WITHOUT_VENV:-0}" ;;
    *"version_info <"*) exit "${TOO_OLD:-0}" ;;
    *"version_info[:2]"*) echo 3.11 ;;
    --version) echo "Python 3.9.2" ;;
    *"-m fsdp_lab.launch"*)
        if [ -n "${REAL_TRAINING-}" ]; then exec "$REAL_PYTHON" "$@"; fi
        for name in TERM INT HUP QUIT USR1; do trap "echo got $name; exit 143" $name; done
        if [ -n "${WAIT-}" ]; then touch "$CALLS.ready"; for i in {1..100}; do sleep 0.1; done; fi
        exit "${TRAINING_EXIT:-0}" ;;
    *"-m tensorboard.main"*) [[ "$*" == *"${TAKEN_PORT:-none}"* ]] && exit 255; sleep 30 ;;
    *"-m ruff check"*) echo ruff; exit 1 ;;
    *"-m ruff"* | *"-m mypy"* | *"-m mkdocs"* | *"-m pytest"*) ;;
    *) exec "$REAL_PYTHON" "$@" ;;
esac
"""


class Checkout:
    """A copy of the scripts with the stand-in for Python."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cwd = folder / "check out", folder / "elsewhere"
        self.calls_file, self.python = folder / "calls", folder / "python-stand-in"
        self.cwd.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in FILES:
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "fsdp_lab").symlink_to(ROOT / "fsdp_lab")
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)

    def environment(self, **extra: str) -> dict[str, str]:
        own = {"PYTHON": str(self.python), "REAL_PYTHON": sys.executable, "CALLS": str(self.calls_file)}
        inherited = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
        return inherited | own | extra

    def run(self, script: str, *flags: str, **extra: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / script), *flags]
        return subprocess.run(
            command, cwd=self.cwd, env=self.environment(**extra), capture_output=True, text=True, timeout=60
        )

    def train(self, *flags: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return self.run("run_safe_training.sh", *flags, **extra)

    def calls(self, module: str) -> list[list[str]]:
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [words for words in map(shlex.split, lines) if words[:2] == ["-m", module]]

    def torchrun(self) -> list[str]:
        (call,) = self.calls("fsdp_lab.launch")
        return call


@pytest.fixture
def fresh(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def checkout(fresh: Checkout) -> Checkout:
    """One whose environment is installed."""
    assert fresh.run("run_tests.sh", "--version").returncode == 0
    fresh.calls_file.unlink()
    return fresh


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


# --- run_safe_training.sh


def test_flags_reach_the_training_word_for_word(checkout: Checkout) -> None:
    flags = [
        "--comm_compress=int8",
        "--comm_config_json",
        '{"layers": {"a b it\'s $HOME \\"x\\" *": "none"}}',
        "--max_steps=4",
        "--log_interval",
        "3",
    ]
    assert checkout.train(*flags, "--nproc_per_node", "3", "--no_tensorboard").returncode == 0
    call = checkout.torchrun()
    assert "--nproc-per-node=3" in call
    assert call[call.index("--") + 1 :] == ["fsdp_lab.train", *flags, "--no_tensorboard"]


def test_without_flags_it_demonstrates_and_says_so(checkout: Checkout) -> None:
    done = checkout.train()
    assert checkout.torchrun()[-3:] == ["fsdp_lab.train", "--method", "int4 hadamard + delta"]
    assert 'demonstration: gradients and parameters compressed by "int4 hadamard + delta"' in done.stdout


def test_with_flags_nothing_is_compressed_that_no_flag_names(checkout: Checkout) -> None:
    done = checkout.train("--max_steps", "3")
    assert checkout.torchrun()[-3:] == ["fsdp_lab.train", "--max_steps", "3"]
    assert "demonstration" not in done.stdout


def test_torchrun_itself_takes_none_of_our_flags(checkout: Checkout) -> None:
    from fsdp_lab.launcher import get_args_parser
    from fsdp_lab.settings.config import TrainConfig

    checkout.train("--nproc_per_node=2", "--no_tensorboard")
    call = checkout.torchrun()[2:]
    ours = [word for name in [*TrainConfig.specs(), "log", "r", "max"] for word in (f"--{name}", "x")]
    given = get_args_parser().parse_args([*call, *ours])
    assert (given.training_script, given.module) == ("fsdp_lab.train", True)
    assert given.training_script_args == ["--no_tensorboard", *ours]


@pytest.mark.parametrize("code", [0, 1, 17])
def test_the_exit_code_is_returned_and_everything_is_logged(checkout: Checkout, code: int) -> None:
    done = checkout.train("--output_dir", "my runs/a", "--no_tensorboard", TRAINING_EXIT=str(code))
    assert done.returncode == code
    (log,) = (checkout.cwd / "my runs" / "a").glob("training_log_safe_*.txt")
    assert log.read_text() == done.stdout
    assert "2 ranks" in done.stdout
    assert str(log.relative_to(checkout.cwd)) in done.stdout


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--comm_config_json", "{"], "--comm_config_json"),
        (["--bogus", "1"], "--bogus"),
        (["--nproc_per_node", "none"], "--nproc_per_node"),
        (["--nproc_per_node=0"], "--nproc_per_node"),
        (["--nproc_per_node"], "--nproc_per_node"),
        (["--tensorboard_host", "a b"], "--tensorboard_host"),
        (["--tensorboard_host"], "--tensorboard_host"),
        (["--comm_compress", "topq"], "did you mean 'topk'?"),
        (["--model", "gpt2-nanno", "--data_path", "none.json"], "none.json is not there"),
        (["--nnodes", "two"], "--nnodes: got 'two' on the command line, wants a whole number, at least 1"),
        (["--nnodes=2", "--master_addr", "a"], "--node_rank: got '(nothing)' on the command line, wants a whole"),
        (["--nnodes=2", "--node_rank", "2", "--master_addr", "a"], "--node_rank: got '2' on the command line, wants"),
        (["--nnodes=2", "--node-rank=1"], "--master_addr: got '(nothing)' on the command line, wants machine 0's name"),
        (["--nnodes", "2", "--node_rank", "0", "--master_addr", "a b"], "--master_addr: got 'a b'"),
        (["--nnodes=2", "--node_rank=0", "--master_addr=a", "--master_port=65536"], "--master_port: got '65536'"),
        (["--node_rank", "1"], "give --nnodes as well"),
        (["--nnodes=2", "--node_rank=0", "--master_addr=a", "--virtual_ranks", "4"], "one process on one machine"),
        (["--keep_tensorboard=no"], "--keep_tensorboard"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_a_bad_flag_ends_before_torchrun_with_one_message(checkout: Checkout, flags: list[str], word: str) -> None:
    done = checkout.train(*flags)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not checkout.calls("fsdp_lab.launch")
    assert not (checkout.cwd / "fsdp_output").exists()


def test_help_lists_the_flags_of_script_and_training(checkout: Checkout) -> None:
    done = checkout.train("--batch_size", "2", "--help")
    assert done.returncode == 0
    assert all(flag in done.stdout for flag in ("--nproc_per_node", "--keep_tensorboard", "--comm_compress"))
    assert not checkout.calls("fsdp_lab.launch")


@pytest.mark.parametrize(("visible", "ranks"), [("0,1,2", 3), ("", 2)])
def test_ranks_are_the_visible_gpus_or_two(checkout: Checkout, visible: str, ranks: int) -> None:
    checkout.train("--no_tensorboard", CUDA_VISIBLE_DEVICES=visible)
    assert f"--nproc-per-node={ranks}" in checkout.torchrun()


def test_all_that_is_wrong_with_the_scripts_own_flags_is_said_at_once(checkout: Checkout) -> None:
    done = checkout.train("--nnodes=2", "--master-port=x", "--tensorboard-host=")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [
        "--node_rank",
        "--master_port",
        "--master_addr",
        "--tensorboard_host",
    ]


def test_several_machines_meet_at_machine_0(checkout: Checkout) -> None:
    flags = ["--nnodes", "2", "--node-rank=1", "--master_addr", "host-0.lan", "--nproc-per-node", "3"]
    done = checkout.train(*flags, "--max-steps", "4", "--no_tensorboard")
    assert done.returncode == 0, done.stderr
    call = checkout.torchrun()
    meeting = ["--nnodes=2", "--node-rank=1", "--master-addr=host-0.lan", "--master-port=29500"]
    assert call[2 : call.index("-m", 2)] == [*meeting, "--nproc-per-node=3"]
    assert call[call.index("--") + 1 :] == ["fsdp_lab.train", "--max-steps", "4", "--no_tensorboard"]
    assert "machine 1 of 2; they meet at host-0.lan:29500" in done.stdout


def test_one_machine_needs_no_meeting(checkout: Checkout) -> None:
    assert checkout.train("--nnodes", "1", "--no_tensorboard").returncode == 0
    assert "--standalone" in checkout.torchrun()


SMI = """#!/bin/sh
echo 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0a1)'
echo '  MIG 1g.10gb     Device  0: (UUID: MIG-5)'
echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1b2)'
"""


@pytest.mark.parametrize(
    ("visible", "lines"),
    [
        (None, ["GPU 0: NVIDIA A100-SXM4-80GB", "GPU 1: NVIDIA H100 80GB HBM3", "2 ranks;"]),
        ("1", ["GPU 0: NVIDIA H100 80GB HBM3", "1 rank;"]),
        ("GPU-1b2, 0", ["GPU 0: NVIDIA H100 80GB HBM3", "GPU 1: NVIDIA A100-SXM4-80GB", "2 ranks;"]),
        ("0,7", ["GPU 0: NVIDIA A100-SXM4-80GB", "GPU 1: GPU 7", "2 ranks;"]),
        ("-1", ["no GPU: 2 ranks on the CPU;"]),
        ("", ["no GPU: 2 ranks on the CPU;"]),
    ],
)
def test_the_gpus_it_sees_are_named(checkout: Checkout, tmp_path: Path, visible: str | None, lines: list[str]) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    seen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = checkout.train("--no_tensorboard", PATH=f"{tools}:{os.environ['PATH']}", **seen)
    said = done.stdout.splitlines()
    assert said[: len(lines) - 1] == lines[:-1]
    assert said[len(lines) - 1].startswith(lines[-1])


def test_a_demonstration_on_one_gpu_has_somebody_to_send_to(checkout: Checkout) -> None:
    assert "1 process for 2 virtual ranks" in checkout.train(CUDA_VISIBLE_DEVICES="0").stdout


def test_virtual_ranks_are_one_process(checkout: Checkout) -> None:
    done = checkout.train("--no_tensorboard", "--virtual_ranks", "16", CUDA_VISIBLE_DEVICES="0,1,2")
    assert "--nproc-per-node=1" in checkout.torchrun()
    assert "1 process for 16 virtual ranks" in done.stdout


def test_ranks_follow_nvidia_smi(checkout: Checkout, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\nprintf 'GPU 0: A\\nGPU 1: A\\nGPU 2: A\\nGPU 3: A\\n'\n")
    (tools / "nvidia-smi").chmod(0o755)
    done = checkout.train("--no_tensorboard", PATH=f"{tools}:{os.environ['PATH']}")
    assert "--nproc-per-node=4" in checkout.torchrun()
    assert "4 ranks" in done.stdout


def test_the_output_folder_may_come_from_a_file(checkout: Checkout) -> None:
    (checkout.cwd / "recipe.yaml").write_text("output_dir: from-file\ntensorboard: false\n")
    assert checkout.train("--config", "recipe.yaml").returncode == 0
    assert list((checkout.cwd / "from-file").glob("training_log_safe_*.txt"))
    assert not checkout.calls("tensorboard.main")


def test_two_starts_in_one_second_keep_two_logs(checkout: Checkout) -> None:
    for _ in range(3):
        assert checkout.train("--no_tensorboard").returncode == 0
    assert len(list((checkout.cwd / "fsdp_output").glob("training_log_safe_*.txt"))) == 3


def test_tensorboard_leaves_a_busy_port_to_its_owner_and_ends_with_the_training(checkout: Checkout) -> None:
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # taken by somebody else: as good
            owner.bind(("127.0.0.1", 6006))
            owner.listen()
        environment = checkout.environment(WAIT="1", TENSORBOARD_DELAY_S="0")
        run = subprocess.Popen(
            [checkout.root / "run_safe_training.sh"],
            cwd=checkout.cwd,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: checkout.calls("tensorboard.main"))
        run.send_signal(signal.SIGTERM)
        text, _ = run.communicate(timeout=60)
    call = checkout.calls("tensorboard.main")[0]
    assert call[call.index("--host") + 1] == "127.0.0.1"
    port = call[call.index("--port") + 1]
    assert port != "6006"
    assert f"http://127.0.0.1:{port}" in text
    wait_for(lambda: not processes_with(str(checkout.root / ".venv/bin/python")))


def processes_with(word: str) -> list[str]:
    """Command lines of living processes that mention ``word``."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if word in line]


def test_a_port_lost_between_look_and_bind_costs_only_another_try(checkout: Checkout) -> None:
    environment = checkout.environment(WAIT="1", TENSORBOARD_DELAY_S="0", TAKEN_PORT="--port 60")
    probe = 'source "$0/scripts/tensorboard.sh"; free_port() { echo 7777; }; serve_tensorboard "$1" . 6006 0.0.0.0'
    command = ["bash", "-c", probe, str(checkout.root), str(checkout.root / ".venv/bin/python")]
    serve = subprocess.Popen(command, cwd=checkout.cwd, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: len(checkout.calls("tensorboard.main")) == 2)
    os.killpg(serve.pid, signal.SIGKILL)
    text, _ = serve.communicate()
    assert b"7777" in text
    call = checkout.calls("tensorboard.main")[1]
    assert "7777" in call
    assert call[call.index("--host") + 1] == "0.0.0.0", "what --tensorboard_host asked for"


def _heeds_all() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # ignored when the tests run in the background
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("slow", [False, True], ids=["while-it-trains", "before-the-script-knows-its-process"])
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1"])
def test_signals_are_passed_on_once_and_the_end_is_awaited(checkout: Checkout, name: str, slow: bool) -> None:
    script = checkout.root / "run_safe_training.sh"
    if slow:
        started = "\ntorchrun=$!\n"
        assert started in script.read_text()
        script.write_text(script.read_text().replace(started, "\nsleep 1; torchrun=$!\n"))
    command = [str(script), "--no_tensorboard"]
    run = subprocess.Popen(
        command,
        cwd=checkout.cwd,
        env=checkout.environment(WAIT="1"),
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_heeds_all,
    )
    wait_for(Path(f"{checkout.calls_file}.ready").exists)
    os.killpg(run.pid, getattr(signal, f"SIG{name}"))  # as a terminal's Ctrl-C does: the whole foreground group
    text, _ = run.communicate(timeout=60)
    assert run.returncode == 143
    assert text.count(b"got " + name.encode()) == 1
    (log,) = (checkout.cwd / "fsdp_output").glob("training_log_safe_*.txt")
    assert f"got {name}" in log.read_text()


def test_the_second_start_reaches_torchrun_within_a_second(checkout: Checkout) -> None:
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        assert checkout.train("--no_tensorboard").returncode == 0
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 3, "no installation, no heavy import: half a second here"
    assert not checkout.calls("pip")


def test_mistakes_that_only_the_ranks_can_find_are_one_message_and_exit_code_2(checkout: Checkout) -> None:
    (checkout.root / "fsdp_lab").unlink()
    shutil.copytree(ROOT / "fsdp_lab", checkout.root / "fsdp_lab", ignore=shutil.ignore_patterns("__pycache__"))
    (checkout.root / "fsdp_lab" / "train.py").write_text(
        "from fsdp_lab.run.entry import run_as_program\n"
        "def refuse(config):\n    raise ValueError('no such corpus')\n"
        "if __name__ == '__main__':\n    run_as_program(refuse)\n"
    )
    (checkout.root / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    done = checkout.train("--no_tensorboard", "--nproc_per_node", "2")  # the real torchrun, two ranks
    assert done.returncode == 2
    assert done.stdout.count("fsdp_lab.train: no such corpus") == 1
    assert "Traceback" not in done.stdout + done.stderr


# --- scripts/environment.sh


def pip_installs(checkout: Checkout) -> list[list[str]]:
    return [call for call in checkout.calls("pip") if "install" in call]


def test_an_environment_is_made_once_with_pinned_versions(fresh: Checkout) -> None:
    assert fresh.train("--no_tensorboard").returncode == 0
    (install,) = pip_installs(fresh)
    assert install[install.index("-c") + 1] == str(fresh.root / "constraints.txt")
    assert install[install.index("-e") + 1] == f"{fresh.root}[lab,analysis]"
    assert fresh.train("--no_tensorboard").returncode == 0
    assert len(pip_installs(fresh)) == 1
    assert fresh.run("run_tests.sh", "--version").returncode == 0
    assert pip_installs(fresh)[1][-1] == f"{fresh.root}[lab,analysis,dev,docs,notebooks,examples]"
    assert fresh.train("--no_tensorboard").returncode == 0  # the dev environment holds all that training needs
    assert len(pip_installs(fresh)) == 2


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_is_installed(checkout: Checkout, name: str) -> None:
    with (checkout.root / name).open("a") as file:
        file.write("\n# changed\n")
    assert checkout.train("--no_tensorboard").returncode == 0
    assert len(pip_installs(checkout)) == 1


def test_an_interrupted_install_is_done_again(fresh: Checkout) -> None:
    done = fresh.train("--no_tensorboard", PIP_EXIT="1")
    assert done.returncode == 1
    assert "installation failed" in done.stderr
    assert not fresh.calls("fsdp_lab.launch")
    assert fresh.train("--no_tensorboard").returncode == 0
    assert len(pip_installs(fresh)) == 2


def test_two_first_starts_at_once_install_once(fresh: Checkout) -> None:
    environment = fresh.environment(PIP_SECONDS="1")
    command = [str(fresh.root / "run_safe_training.sh"), "--no_tensorboard"]
    starts = [
        subprocess.Popen(command, cwd=fresh.cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    assert [start.wait(30) for start in starts] == [0, 0, 0]
    assert len(pip_installs(fresh)) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"TOO_OLD": "1"}, ["Python 3.11 or newer", "3.9.2", "PYTHON="]),
        ({"WITHOUT_VENV": "1"}, ["venv", "python3.11-venv"]),
    ],
)
def test_an_unfit_python_is_refused_with_what_to_do(fresh: Checkout, fault: dict[str, str], words: list[str]) -> None:
    done = fresh.train(**fault)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- run_tests.sh


def test_all_checks_run_even_when_one_fails(checkout: Checkout) -> None:
    done = checkout.run("run_tests.sh")
    assert done.returncode == 1
    assert len(checkout.calls("ruff")) == 2
    assert checkout.calls("mypy") == [
        ["-m", "mypy", "comm_compress", "fsdp_lab", "experiments", "analysis", "examples", "scripts"]
    ]
    workers = str(min(len(os.sched_getaffinity(0)) + 1, 4))
    assert checkout.calls("pytest") == [["-m", "pytest", "--numprocesses", workers, "--dist", "loadfile"]]
    summary = dict(line.rsplit(None, 1) for line in done.stdout.partition("== summary\n")[2].splitlines())
    assert summary.pop("ruff check") == "FAILED"
    assert set(summary) == {"ruff format", "mypy", "scripts", "site", "pytest", "smoke sweep"}


def test_flags_go_to_pytest_alone(checkout: Checkout) -> None:
    assert checkout.run("run_tests.sh", "-k", "a b").returncode == 0
    assert checkout.calls("pytest") == [["-m", "pytest", "-k", "a b"]]
    assert not checkout.calls("ruff")


def test_scripts_are_well_formed_and_executable() -> None:
    for script in [*ROOT.glob("*.sh"), ROOT / ".ci" / "run"]:
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
