"""What does every schedule do, and what do its papers say it costs?

Formulas are Python expressions of p stages, v chunks per rank, m microbatches and the times
tF, tI, tW and tB = tI + tW of one microbatch on a whole rank; tests hold them against runs.
They assume at least as many microbatches as the schedule needs to fill the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Note:
    """One schedule in words and closed forms.

    Attributes:
        text: What it does and why, a short paragraph.
        bubble: Idle time per rank and step; empty where no closed form is known.
        bubble_when: What the formula assumes; empty is nothing.
        bubble_is_bound: Whether the bubble is at most the formula, instead of equal.
        bubble_is_between: Whether idle time counts from a rank's own first start to its own
            last end, as in the zero-bubble papers.
        activations: Most activations on the fullest rank [microbatches of its whole share].
    """

    text: str
    bubble: str
    bubble_when: str = ""
    bubble_is_bound: bool = False
    bubble_is_between: bool = False
    activations: str


_1F1B_BUBBLE, _EQUAL = "(p - 1) * (tF + tB)", "tF = tI = tW"

NOTES: Mapping[str, Note] = MappingProxyType(
    {
        "naive": Note(
            text="One microbatch goes down all ranks and back before the next one starts, so that "
            "one rank works and the others wait. Nothing holds less memory, and nothing is slower.",
            bubble="m * (p - 1) * (tF + tB)",
            activations="1",
        ),
        "gpipe": Note(
            text="All forwards, then all backwards. Ranks wait only while the pipeline fills and "
            "drains, so more microbatches make the bubble matter less; but a rank holds the "
            "activations of every one of them, which is why it is run with recomputation.",
            bubble=_1F1B_BUBBLE,
            activations="m",
        ),
        "pipedream": Note(
            text="One forward and one backward in turn, and never a flush: weights change after "
            "every microbatch. A microbatch must meet the same weights in its backward as in its "
            "forward, so a rank keeps a version of its weights for each microbatch in flight, p "
            "on the first rank and one on the last. Gradients of old weights change what is "
            "learnt: this is not the synchronous training that the other schedules do.",
            bubble="0",
            activations="p",
        ),
        "pipedream-2bw": Note(
            text="PipeDream with gradients summed over at least p microbatches before weights "
            "change, so that two versions are enough on every rank. The gradient applied is one "
            "update old.",
            bubble="0",
            activations="p",
        ),
        "1f1b": Note(
            text="PipeDream's order with a flush before each weight update. The bubble is GPipe's; "
            "but rank r has only p - r microbatches in flight, however many a step has.",
            bubble=_1F1B_BUBBLE,
            activations="min(m, p)",
        ),
        "dapple": Note(
            text="The early-backward schedule of DAPPLE. Under its policy A a rank lets p - r "
            "microbatches in, which is the order of 1f1b.",
            bubble=_1F1B_BUBBLE,
            activations="min(m, p)",
        ),
        "interleaved-1f1b": Note(
            text="Every rank holds v chunks that lie p stages apart. A microbatch comes past v "
            "times, filling takes chunks instead of whole ranks, and the bubble shrinks by v. It "
            "costs v times the messages between ranks, and activations of a round more.",
            bubble="(p - 1) * (tF + tB) / v",
            activations="min(m, (p * (v + 1) - 1) / v)",
        ),
        "looped-bfs": Note(
            text="Interleaved chunks, breadth first: a chunk takes all microbatches before the "
            "next chunk starts. Sharded weights of a chunk are gathered once per pass and their "
            "gradients reduced early, but as in GPipe all microbatches are held.",
            bubble="(p - 1) * (tF + tB) / v",
            activations="m",
        ),
        "zb-h1": Note(
            text="The backward in two: input gradients, which the rank before waits for, at once; "
            "weight gradients, which nobody waits for, where the rank would idle. With the "
            "activations of 1F1B's first rank on every rank, a third of its bubble is left where "
            "all phases take equal time.",
            bubble="(p - 1) * (tF + tI - tW)",
            bubble_when="tW <= tI",
            activations="min(m, p)",
        ),
        "zb-h2": Note(
            text="As zb-h1, with almost twice as many forwards ahead. Ranks start and end one "
            "forward apart and never wait in between; the bubble is gone if the optimizer step "
            "does not bring them together again. Twice the activations pay for it.",
            bubble="(p - 1) * (tF + tI - 2 * tW)",
            bubble_when="tW <= tI",
            bubble_is_between=True,
            activations="min(m, 2 * p - 1)",
        ),
        "zb-1p": Note(
            text="zb-h1 over several chunks per rank, which divides what is left of the bubble by "
            "their number.",
            bubble="(p - 1) * (tF + tI - tW) / v",
            bubble_when=_EQUAL,
            activations="min(m, p)",
        ),
        "zb-2p": Note(
            text="Searched for: as many forwards ahead as 2p microbatches' activations leave room "
            "for, then one forward and one input gradient in turn, and weight gradients wherever "
            "they fill a wait or must make room. A job is searched with the times and memory of "
            "its own passes; the picture has equal ones.",
            bubble="0",
            bubble_when=_EQUAL,
            bubble_is_between=True,
            activations="min(m, 2 * p)",
        ),
        "zb-v": Note(
            text="Two chunks per rank, down the ranks and up again, so that the last part of the "
            "model sits on the first rank. Backwards reach every rank early, activations are "
            "even, and no rank waits between its start and its end, with no more memory than the "
            "first rank of 1F1B.",
            bubble="0",
            bubble_when=_EQUAL,
            bubble_is_between=True,
            activations="min(m, p)",
        ),
        "v-half": Note(
            text="The V again, as one block that every microbatch repeats: two ticks per rank on "
            "the way down, one on the way up. Activations tend to half of 1F1B's as the pipeline "
            "grows, for at most half of its bubble.",
            bubble="(p - 1) * (tF + tB) / 2",
            bubble_when=_EQUAL,
            bubble_is_bound=True,
            activations="min(m, (p + 2) // 2)",
        ),
        "v-min": Note(
            text="The V with one tick per rank on every way, so that activations live as short as "
            "they can. They tend to a third of 1F1B's as the pipeline grows, for at most two "
            "thirds of its bubble.",
            bubble="(p - 1) * (tF + tB) * 2 / 3",
            bubble_when=_EQUAL,
            bubble_is_bound=True,
            activations="min(m, (p + 4) // 3)",
        ),
        "dualpipe": Note(
            text="Two copies of the model, fed from both ends. Where the two directions meet, the "
            "forward of one and the backward of the other run together (framed), so that the "
            "expert-parallel all-to-all of each hides behind the other's computation. That gain "
            "is not in this picture, where a joint slot takes the sum of its halves.",
            bubble="(p / 2 - 1) * (tF + 2 * tB - 3 * tW)",
            bubble_when="tF = tI",
            activations="min(m, p + 1)",
        ),
        "dualpipev": Note(
            text="DualPipe cut in half and folded: the second half of a rank's pair becomes a "
            "second chunk, laid out as a V. The same joint slots with one copy of the weights.",
            bubble="(p - 1) * (tF + 2 * tB - 3 * tW) / 2",
            bubble_when="tF = tI",
            activations="min(m, p + 1 / 2)",
        ),
        "chimera": Note(
            text="Two copies of the model, half of the microbatches down and half of them up, each "
            "direction as in 1F1B and each in the other's bubbles. Units of p microbatches follow "
            "each other; where backwards take longer than forwards they do not quite interlock, "
            "which the picture shows.",
            bubble="(p - 2) / 2 * (tF + tB)",
            bubble_when="tB = tF",
            activations="min(m, p)",
        ),
        "varuna": Note(
            text="A rank runs a backward whenever its gradient has come, else the next forward. "
            "Made for slow networks and full recomputation, where only the inputs of a rank are "
            "held and running ahead is cheap. The order drawn plans with backwards that recompute; "
            "the picture, with the costs of the others, leaves recomputation out. At other costs, "
            "and in a job with its own passes, links and perturbations, ranks follow the rule as "
            "results come, and may hold more or less.",
            bubble="",
            activations="min(m, 3 * (p - 1))",
        ),
        "sagemaker-simple": Note(
            text="The simple pipeline of Amazon's SageMaker library: forwards of all microbatches "
            "end before the first backward starts, which is the order of gpipe.",
            bubble=_1F1B_BUBBLE,
            activations="m",
        ),
        "sagemaker-interleaved": Note(
            text="The interleaved pipeline of Amazon's SageMaker library: a rank prefers backwards "
            "and alternates them with forwards. Its documentation draws two ranks, where the first "
            "runs its first backward before its third forward, as in 1f1b; that it does so on more "
            "ranks is an assumption. No chunks are interleaved, whatever the name says.",
            bubble=_1F1B_BUBBLE,
            activations="min(m, p)",
        ),
    }
)
"""Every schedule by name."""
