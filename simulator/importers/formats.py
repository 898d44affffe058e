"""Which training frameworks' files can be read, and who reads them?

To add one, write its importer, its facts in ``simulator/facts/importers``, and its entry here; the
command ``clustersim import NAME`` follows from the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.described.foreign_config import ImportReport
    from simulator.described.job import Job
    from simulator.importers.assembly import Given


@dataclass(frozen=True, kw_only=True)
class Format:
    """One framework's files.

    Attributes:
        name: As ``clustersim import`` has it.
        reader: The function that reads them, as ``module:function`` of this room; it is loaded
            when a file is read, and keeps what :meth:`read` promises.
        framework: What the files belong to, in words.
        file: What a file is, in words.
        metavar: What stands for it in the help.
        example: What a person would write after the name.
        takes_more: Whether further files complete the first one.
        has_variables: Whether files leave names open that the user can define.
    """

    name: str
    reader: str
    framework: str
    file: str
    metavar: str
    example: str
    takes_more: bool = False
    has_variables: bool = False

    def read(self, paths: Sequence[Path], given: Given) -> tuple[Job, ImportReport]:
        """The job of the files, and a report on their settings.

        Args:
            paths: One file, or several where the format takes more.
            given: What the user says beside them.

        Raises:
            InputError: They are no such files, a setting costs something that is not modelled, or
                something is missing.
        """
        module, _, function = self.reader.partition(":")
        reader: Callable[..., tuple[Job, ImportReport]] = getattr(
            import_module(f"{__package__}.{module}"), function
        )
        return reader(paths, given) if self.takes_more else reader(paths[0], given)


_ENTRIES = (
    Format(
        name="megatron",
        reader="megatron.launch_line:read_megatron_script",
        framework="Megatron-LM",
        file="A launch script or command line.",
        metavar="SCRIPT.sh",
        example="train_gpt3_175b.sh --gpus 1024",
        has_variables=True,
    ),
    Format(
        name="deepspeed",
        reader="finetuning.trainer:read_deepspeed_files",
        framework="DeepSpeed",
        file="A ds_config.json, and TrainingArguments that it is used with.",
        metavar="CONFIG.json",
        example="ds_config.json --model llama3.1-8b --gpus 8 --seq-len 4096",
        takes_more=True,
    ),
    Format(
        name="torchtitan",
        reader="torchtitan:read_torchtitan_config",
        framework="torchtitan",
        file="A TOML, the JSON that it resolves to, or FILE.py:FUNCTION of a registry.",
        metavar="CONFIG",
        example="llama3_70b.toml --gpus 256",
    ),
    Format(
        name="accelerate",
        reader="finetuning.accelerate:read_accelerate_files",
        framework="Hugging Face accelerate",
        file="Its configuration, TrainingArguments, or both.",
        metavar="FILE",
        example="fsdp.yaml training_args.json --model llama3.1-8b --seq-len 4096",
        takes_more=True,
    ),
    Format(
        name="nemo",
        reader="megatron.nemo:read_nemo_recipe",
        framework="NeMo or Megatron-Bridge",
        file="A YAML recipe, or FILE.py:FUNCTION of a recipe in Python.",
        metavar="RECIPE",
        example="llama2_70b.yaml",
        has_variables=True,
    ),
    Format(
        name="axolotl",
        reader="finetuning.trainer:read_axolotl_files",
        framework="axolotl",
        file="A YAML, and the DeepSpeed JSON that it names.",
        metavar="CONFIG.yaml",
        example="fft-8b.yaml --gpus 8",
        takes_more=True,
    ),
    Format(
        name="llamafactory",
        reader="finetuning.trainer:read_llamafactory_files",
        framework="LLaMA-Factory",
        file="A YAML or JSON, and the DeepSpeed JSON that it names.",
        metavar="CONFIG.yaml",
        example="llama3_full_sft.yaml --gpus 8",
        takes_more=True,
    ),
    Format(
        name="ms-swift",
        reader="finetuning.ms_swift:read_swift_files",
        framework="ms-swift or Megatron-SWIFT",
        file="A launch script, or arguments as YAML or JSON; and the DeepSpeed JSON that they "
        "name.",
        metavar="SCRIPT.sh",
        example="train.sh --gpus 8",
        takes_more=True,
        has_variables=True,
    ),
    Format(
        name="torchtune",
        reader="finetuning.torchtune:read_torchtune_recipe",
        framework="torchtune",
        file="A recipe's YAML.",
        metavar="CONFIG.yaml",
        example="llama3_1/8B_full.yaml --gpus 8 --seq-len 2048",
        has_variables=True,
    ),
    Format(
        name="automodel",
        reader="finetuning.automodel:read_automodel_recipe",
        framework="NeMo AutoModel",
        file="A recipe's YAML.",
        metavar="RECIPE.yaml",
        example="llama3_1_8b_peft_benchmark.yaml --gpus 8",
    ),
    Format(
        name="xtuner",
        reader="finetuning.xtuner:read_xtuner_config",
        framework="XTuner",
        file="A configuration in Python.",
        metavar="CONFIG.py",
        example="llama3_8b_full_alpaca_e3.py --gpus 8",
    ),
    Format(
        name="nanotron",
        reader="pretraining.nanotron:read_nanotron_config",
        framework="nanotron",
        file="A YAML.",
        metavar="CONFIG.yaml",
        example="config_llama.yaml",
    ),
    Format(
        name="gpt-neox",
        reader="pretraining.gpt_neox:read_neox_files",
        framework="GPT-NeoX",
        file="Its YAML files; later files override earlier ones.",
        metavar="CONFIG.yml",
        example="20B.yml --gpus 96",
        takes_more=True,
    ),
    Format(
        name="llm-foundry",
        reader="pretraining.llm_foundry:read_foundry_config",
        framework="llm-foundry",
        file="A YAML of its train.py.",
        metavar="CONFIG.yaml",
        example="mpt-7b.yaml --gpus 64",
        has_variables=True,
    ),
    Format(
        name="primus",
        reader="megatron.primus:read_primus_experiment",
        framework="Primus",
        file="An experiment's YAML.",
        metavar="EXPERIMENT.yaml",
        example="llama3.1_70B-pretrain.yaml --profile mi300x --gpus 8",
        has_variables=True,
    ),
    Format(
        name="maxtext",
        reader="pretraining.maxtext:read_maxtext_config",
        framework="MaxText",
        file="A YAML, or a launch script.",
        metavar="CONFIG.yml",
        example="llama3_70b.yml --gpus 64",
        has_variables=True,
    ),
)

FORMATS: Mapping[str, Format] = {entry.name: entry for entry in _ENTRIES}
"""Every format by its name."""
