"""Measured rows in tables, as people keep them.

spellings                           words for GPUs, fabrics, formats and frameworks
kernel_rows, collective_rows        what one row says, and what answers it
collective_table                    measured rows onto the disk
"""
