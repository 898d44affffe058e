"""What must hold between the fields of a job or profile.

One file per subject, all asked by ``all_rules``.
"""
