"""How do the stages of a pipeline agree on shapes when each runs by itself?

Stages of ``torch.distributed.pipelining`` that are not told the shapes of what they receive send
them to each other before the first step. Captured ranks run one after another, so what a stage
says to the next is left in a folder. What comes against the order, from ranks that did not run
yet, is derived: gradients have the shape of what they are of, and the boundary into a later chunk
is taken to be like the one that this rank sent last.

Ignores: outputs without a gradient, and boundaries of later chunks that differ.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.pipelining import schedules, stage
from torch.distributed.pipelining._utils import InferenceMode

from simulator.capture.recording.absent_streams import replaced
from simulator.errors import InputError


@contextlib.contextmanager
def agreeing_stages(mailbox: Path) -> Iterator[None]:
    """Inside, stages learn shapes from ranks that ran before.

    Args:
        mailbox: A folder that all ranks of a capture share.
    """
    last: list[Any] = []

    def warm_up(_: Any, stages: list[Any], has_backward: bool, __: bool) -> None:
        for each in stages:
            dynamic = InferenceMode.needs_dynamic(each._user_meta, has_backward)
            each._inference_mode = InferenceMode.DYNAMIC if dynamic else InferenceMode.STATIC

    def send(sender: Any, meta: Any, target: int) -> None:
        if target > sender.stage_index:
            last[:] = [meta]
            (mailbox / f"into{target}").write_bytes(pickle.dumps(meta))

    def receive(receiver: Any, source: int) -> Any:
        if source > receiver.stage_index:
            derived = stage._derive_grad_metas(  # type: ignore[attr-defined]
                receiver._stage_meta.outputs
            )
            return stage._StageBackwardMeta(  # type: ignore[attr-defined]
                backward_metas=derived
            )
        said = mailbox / f"into{receiver.stage_index}"
        if said.is_file():
            # Only this capture's own processes write there.
            return pickle.loads(said.read_bytes())
        if not last:
            rule = (
                f"stage {receiver.stage_index} runs before the shapes of stage {source} are known"
            )
            raise InputError.single("--ranks", rule, hint="capture all stages, in order: auto")
        return last[0]

    with replaced(
        {
            (schedules._PipelineSchedule, "_warmup_p2p"): warm_up,
            (stage.PipelineStage, "_send_meta"): send,
            (stage.PipelineStage, "_recv_meta"): receive,
        }
    ):
        yield
