"""Commands that measure, or hold predictions against measurements."""
