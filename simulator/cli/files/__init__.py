"""Commands that read, write and check files.

Jobs, models, profiles, schemas, foreign formats.
"""
