"""A result in the forms that other programs and people read.

chrome_trace                              the step for Perfetto and chrome://tracing
serving_trace                             engine steps and requests of serving, likewise
html/                                     the step as a page
plans, megatron, deepspeed, torchtitan    the job in the files of a framework
"""
