"""Which rank is where.

rank_groups      the groups of ranks, and the links that each crosses
placement        which GPU holds which rank
stage_layers     the layers of each virtual pipeline stage
stand_ins        layers that stand for equal ones of later ranks
expert_tokens    how many tokens the experts of a rank receive
"""
