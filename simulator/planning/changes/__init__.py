"""Single changes of a job, tried.

What makes it fit, what makes it faster, what matters most.
"""
