"""reports/planning.md: published plans and GPU-hours against predicted ones."""
