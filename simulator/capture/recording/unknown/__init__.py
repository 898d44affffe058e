"""What does code that runs without contents learn of its tensors?

=======================  ==========================================================
:mod:`.values`           numbers that only a real run knows
:mod:`.selections`       shapes that only a real run knows
:mod:`.unpadded`         sequences of transformers, taken to be whole
=======================  ==========================================================
"""
