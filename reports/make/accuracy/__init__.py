"""reports/accuracy.md and reports/zero_bubble.md: published runs against predictions."""
