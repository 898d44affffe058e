"""Is a wrong verdict on memory told apart from a right one, and said with its size?"""

from __future__ import annotations

from dataclasses import replace

from reports.make.accuracy.memory_accuracy import memory_section
from simulator.validate.published.published_runs import PublishedReport, PublishedResult


def test_wrong_verdicts_are_named_with_how_full_the_gpu_is_predicted_to_be():
    ran = PublishedResult("ran-001", "A", "h100", 1.0, fits=True, filled_share=0.5)
    too_full = replace(ran, id="ran-002", fits=False, filled_share=1.001)
    burst = replace(ran, id="oom-001", ran=False, fits=False, filled_share=1.4)
    fitted = replace(burst, id="oom-002", fits=True, filled_share=0.988)
    section = memory_section(PublishedReport([ran, too_full]), {}, [burst, fitted])
    assert "ran-002 (100.1 %), oom-002 (98.8 %)." in section
    assert "| ran | 1 | 1 |" in section
    assert "| out of memory | 1 | 1 |" in section
    assert "Wrong" not in memory_section(PublishedReport([ran]), {}, [burst])
