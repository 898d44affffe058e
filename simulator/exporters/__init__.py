"""A result in the forms that other programs and people read.

chrome_trace                              steps and serving for Perfetto and chrome://tracing
html/                                     the step as a page
plans, megatron, deepspeed, torchtitan,
accelerate, axolotl                       the job in the files of a framework
"""
