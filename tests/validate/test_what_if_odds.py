"""How often odds held, against pairs that a person can count."""

from __future__ import annotations

from reports.make.accuracy.what_if_odds import (
    OddsGroup,
    PairOdds,
    odds_section,
    read_odds,
    write_odds,
)


def test_pairs_of_a_source_are_counted_together_by_their_odds(tmp_path):
    pairs = [
        PairOdds("a", 0.62, True, True),
        PairOdds("a", 0.68, False, True),
        PairOdds("a", 0.995, True, False),
        PairOdds("b", 0.5, True, True),
    ]
    write_odds(pairs, tmp_path / "odds.csv")
    assert read_odds(tmp_path / "odds.csv") == [
        OddsGroup("a", 0.6, 2, 0.65, 0.5, 1.0),
        OddsGroup("a", 0.99, 1, 0.995, 1.0, 0.0),
        OddsGroup("b", 0.5, 1, 0.5, 1.0, 1.0),
    ]


def test_the_section_counts_pairs_alike_and_sources_alike():
    groups = [OddsGroup("a", 0.9, 3, 0.92, 1.0, 1.0), OddsGroup("b", 0.9, 1, 0.94, 0.0, 0.0)]
    text = odds_section(groups)
    assert "| 90 to 95 % | 4 | 2 | 92 | 75 | 50 |" in text
    assert "in the interval in 75 %, with sources counting the same in 50 %." in text
