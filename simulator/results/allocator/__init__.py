"""What PyTorch's caching allocator reserves for the blocks of a step.

exchanges             reserved from allocated memory: blocks that operations take and give back
allocator_replay      a step of them, without what repeats itself
allocator_moments     whether an allocator is as it was
caching_allocator     the rules by which segments are made, cut and returned
small_pools           how much small blocks reserve at most
free_blocks           which free block comes next
"""
