"""Real torch processes.

``launch`` starts one per rank, ``world`` says which there are, ``shaped`` limits their links.
"""
