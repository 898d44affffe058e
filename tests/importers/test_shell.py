"""Launch scripts are read as Bash would read them, and never run."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.megatron.launch_line import read_megatron_script
from simulator.importers.shell.launch_script import read_script

SCRIPTS = {
    "quotes": """A='x  y'; B="$A z"; show "$A" $A "$B" '$A' \\$A a"b"c""",
    "arithmetic": "N=8; M=$((N * 2 / 3 % 4)); show $M $(($N*$M)) $((64/N)) $(( ${N} - 10 ))",
    "choices in sums": "T=4; A=$(( ($T > 1) ? 2 : 3 )); show $A $((T == 4)) $((T<=3)) $((T>5?1:0))",
    "defaults": "A=1; E=; show ${A:-2} ${B:-3} ${E:-4} ${E-5} ${C:=6} ${A:+7} ${D:+8}",
    "arrays": "A=(--x 1 'a b' # no\n --y); A+=(--z); show ${A[@]} end; show \"${A[@]}\" ${A[1]}",
    "continued lines": "show --a 1 \\\n  --b 2 \\\n  --c",
    "strings grow": 'A="--a"; A=" --b $A"; A+=" --c"; show $A',
    "if": "A=2\nif [ $A -eq 1 ]; then B=x; elif [[ $A == 2 ]]; then B=y; else B=z; fi\nshow $B",
    "if or": 'A=1\nif [ "$A" = 2 ] || [ -z "$N" ]\nthen\n B=x\nelse\n B=y\nfi\nshow $B',
    "if and": 'A=1\nif [[ $A == 1 && -n "$N" ]]; then B=x; else B=y; fi; show $B',
    "nested": "A=1\nif [ $A = 2 ]; then\n if [ $A = 1 ]; then B=x; fi\nelse\n B=y\nfi\nshow $B",
    "negated": "A=1; if [ ! $A = 2 ]; then B=x; fi; show $B",
    "case": "A=7b\ncase $A in\n 1b|2b) B=x;;\n 7b|8b)\n  B=y\n  ;;\n *) B=z;;\nesac\nshow $B",
    "case else": "A=9b\ncase $A in\n 1b|2b) B=x ;;\n *)\n  B=z ;;\nesac\nshow $B",
    "chains": "A=1; [ $A = 1 ] && B=x; [ $A = 2 ] && B=y; [ $A = 2 ] || C=z; show $B $C",
    "comments": "# no\nA=1 # no\nshow a#b $A '#c' # no",
    "exports": "export A=1 B=2\nshow $A$B ${A}b",
    "empty words": 'A=""; show a $A b',
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_that_bash_hands_over(name):
    script = SCRIPTS[name]
    show = "show() { printf '<%s>' \"$@\"; echo; }\n"
    done = subprocess.run(
        ["bash", "-c", show + script], capture_output=True, text=True, check=True, env={}
    )
    read = [words[1:] for words in read_script(script, {}).commands if words[0] == "show"]
    assert ["".join(f"<{word}>" for word in words) for words in read] == done.stdout.splitlines()


def test_here_documents_are_kept_by_file_with_their_values():
    script = 'N=3\ncat <<EOT > out_$N.json\n{"stage": $N, "x": "a"}\nEOT\nshow'
    assert read_script(script, {}).documents == {"out_3.json": '{"stage": 3, "x": "a"}'}


def test_what_is_unknown_stays_as_it_is_written():
    assert read_script("show $A ${B} $(date) $1", {}).commands == [
        ["show", "$A", "${B}", "$(date)", "$1"]
    ]


def test_a_definition_counts_before_an_assignment():
    assert read_script("A=1\nshow $A", {"A": "2"}).commands == [["show", "2"]]


def test_an_undecided_condition_is_false_and_told():
    script = read_script("B=1\nif [ ! -f x ]; then B=2; fi\nshow $B", {})
    assert script.commands == [["show", "1"]]
    assert script.notes == ["the condition (! -f x) is assumed to be false"]


@pytest.mark.parametrize("text", ["A='open", 'A="open', "A=(open", "show $(open"])
def test_an_open_quote_or_bracket_is_an_error_with_its_line(text):
    with pytest.raises(InputError, match="of line 2 is never closed"):
        read_script(f"show\n{text}", {})


def test_variables_cannot_grow_without_bound():
    with pytest.raises(InputError, match="grows to more than"):
        read_script("A=xxxxxxxx\n" + "A=$A$A\n" * 60, {})


LINE = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 96 --bf16"
)


def gpus_of(tmp_path, text, name="launch.sh", **given):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_megatron_script(path, Given(**given))[0].cluster.gpus


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (f"#SBATCH --nodes=4 --gpus-per-node=8\nsrun python {LINE}", 32),
        (f"#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8  # all of them\nsrun python {LINE}", 16),
        (f"#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nsrun python {LINE}", 8),
        (f"#PBS -l select=4:ncpus=64:ngpus=4\nmpiexec python {LINE}", 16),
        (f"#BSUB -nnodes 8\n#BSUB -gpu num=6\njsrun python {LINE}", 48),
        (f"torchrun --nproc_per_node 8 {LINE}", 8),
        ("N=2\nsrun --nodes $N --ntasks-per-node 1 bash -c "
         f"'torchrun --nproc_per_node=8 {LINE}'", 16),
        (f"#SBATCH --nodes=2 --gpus-per-node=4\nsbatch <<EOF\nsrun python {LINE}\nEOF\n", 8),
        (f"cat > job.sh <<EOF\n#SBATCH -N 3\nsrun --gpus-per-node=8 python {LINE}\nEOF\n"
         "sbatch job.sh\n", 24),
        (f'pdsh -w node[1-2] "torchrun --nnodes 2 --nproc_per_node 8 {LINE}"', 16),
        (f"run() {{\n  torchrun --nnodes $1 --nproc_per_node $2 {LINE}\n}}\nrun 2 8\n", 16),
        (f"function run {{\n  torchrun --nnodes ${{10}} --nproc_per_node 8 {LINE}\n}}\n"
         "run a b c d e f g h i 4\n", 32),
        (f"ARGS=({LINE})\nmpirun -np 16 python ${{ARGS[@]}}\n", 16),
    ],
)  # fmt: skip
def test_a_launch_is_found_wherever_a_script_hides_it_and_headers_say_the_gpus(
    tmp_path, text, gpus
):
    assert gpus_of(tmp_path, text) == gpus


def test_what_only_a_branch_sets_that_is_not_taken_is_empty():
    script = read_script("if [ 1 -eq 2 ]; then EXTRA='--swiglu'; fi\ntrain $EXTRA --lr 1\n", {})
    assert script.commands[-1] == ["train", "--lr", "1"]


@pytest.mark.parametrize("value", ["$(cat layers.txt)", "$((DEPTH * 2))", "`nproc`", "${LAYERS}"])
def test_what_a_shell_would_compute_is_asked_for_by_one_definition_that_works(tmp_path, value):
    text = LINE.replace("--num-layers 4", f"--num-layers {value}")
    with pytest.raises(InputError, match="--define") as caught:
        gpus_of(tmp_path, f"torchrun --nproc_per_node 8 {text}")
    (hint,) = {fault.hint for fault in caught.value.faults if fault.path == "num_layers"}
    name = re.findall(r"--define (\w+)=", hint)
    assert len(name) == 1
    script = f"torchrun --nproc_per_node 8 {text}"
    assert gpus_of(tmp_path, script, definitions={name[0]: "8"}) == 8


def test_a_job_of_kubernetes_says_its_script_and_its_gpus(tmp_path):
    container = {
        "name": "pytorch",
        "command": ["bash", "-c"],
        "args": [f"torchrun --nproc_per_node 8 {LINE}"],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    replica = {"template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, **replica},
                "Worker": {"replicas": 3, **replica},
            }
        },
    }
    assert gpus_of(tmp_path, yaml.safe_dump(job), "job.yaml") == 32


def test_a_yaml_that_is_no_job_is_refused(tmp_path):
    with pytest.raises(InputError, match="nor a Kubernetes job"):
        gpus_of(tmp_path, "a: 1\n", "job.yaml")


@pytest.mark.parametrize("mark", ["'", '"', "''", "'\"", "\\'"])
def test_a_quote_that_backticks_hide_ends_with_its_word(tmp_path, mark):
    """A page of Markdown with a fenced block, once read for ever."""
    path = tmp_path / "README.md"
    path.write_text(
        f"```yaml\nplan: {{tp: 4}}  # the framework{mark}s default\n```\n", encoding="utf-8"
    )
    with pytest.raises(InputError):
        read_megatron_script(path, Given(gpus=8))


def test_a_batch_script_knows_what_slurm_tells_it_of_its_headers():
    header = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=2  # each\n"
    names = ("SLURM_NNODES", "SLURM_GPUS_PER_NODE", "SLURM_NTASKS", "SLURM_GPUS_ON_NODE")
    script = header + "show " + " ".join(f"${name}" for name in names)
    assert read_script(script, {}).commands == [["show", "4", "8", "8", "8"]]
    assert read_script(header + "show $SLURM_NNODES", {"SLURM_NNODES": "2"}).commands == [
        ["show", "2"]
    ]


BY_SIZE = """MODEL_SIZE=$1
if [ $MODEL_SIZE = 1B ]; then
LAYERS=16
OPTIONS=" --swiglu"
elif [ $MODEL_SIZE = 8B ]; then
LAYERS=32
OPTIONS=""
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS $OPTIONS --hidden-size 64 \
  --num-attention-heads 4 --micro-batch-size 1 --global-batch-size 8 --seq-length 64 \
  --max-position-embeddings 64 --vocab-size 512 --bf16
"""


def test_a_word_waits_for_the_condition_that_sets_it_and_an_option_does_not(tmp_path):
    script = read_script(BY_SIZE, {})
    assert script.commands[-1][5:8] == ["$LAYERS", "--hidden-size", "64"]
    assert script.waits["LAYERS"] == "$MODEL_SIZE = 1B"
    path = tmp_path / "train.sh"
    path.write_text(BY_SIZE)
    with pytest.raises(InputError) as caught:
        read_megatron_script(path, Given())
    assert [fault.hint for fault in caught.value.faults] == ["--define MODEL_SIZE=..."]
    sized = Given(definitions={"MODEL_SIZE": "8B"})
    assert read_megatron_script(path, sized)[0].model.layers == 32
