"""reports/schedules and reports/network: schedules, systems and collectives, drawn."""
