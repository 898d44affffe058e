"""How many public settings files can be read, and with how much help?

``hints`` follows the ways out that errors name, as a person would; ``corpus`` finds the settings
files of a folder of unpacked packages; ``report`` writes ``reports/importers.md``.
"""
