"""Networks over pictures, captured, against what timm measured."""

from __future__ import annotations

from reports.make.captures.pictures_page import Picture, page

SEEN = {
    "model": "a", "batch": "8", "side": "224", "measured_step_s": "0.100", "first_step_s": "0.110",
    "first_low_s": "0.101", "first_high_s": "0.130", "first_reserved_gib": "30",
}  # fmt: skip
REFUSED = {**SEEN, "model": "b", **dict.fromkeys(SEEN.keys() - {*list(SEEN)[:4]}, "")}


def test_the_page_counts_errors_bands_and_fits_of_both_times_it_looked():
    plain = Picture(SEEN, 0.095, 0.09, 0.12, 20.0, has_groups=False)
    grouped = Picture(REFUSED, 0.12, 0.11, 0.13, 25.0, has_groups=True)
    text = page([plain, grouped])
    assert "| first sight | 1 | 10.0 | 10.0 | +10.0 | 0 | 0 |" in text
    assert "| now | 2 | 12.5 | 12.5 | +7.5 | 1 | 1 |" in text
    assert "| now, without groups of channels | 1 | 5.0 | 5.0 | -5.0 | 1 | 1 |" in text
    assert "| a | 8 of 224 | 100 ms | +10.0 % | 95 ms, -5.0 % | 20.0 GiB |" in text
    assert "| b | 8 of 224 | 100 ms | not captured | 120 ms, +20.0 % | 25.0 GiB |" in text
