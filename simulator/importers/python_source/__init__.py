"""Configurations written in Python, read and never run.

python_modules    a file, parsed, and what it imports beside it
evaluation        assignments and calls, followed to the nested mapping that they stand for
"""
