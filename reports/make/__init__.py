"""Makers of the reports that are checked in; run by ``make``, not part of the package."""
