"""Timeline -> numbers.

``simulation`` runs a job, ``step`` holds the result, ``summary`` makes it; memory and words
apart.
"""
