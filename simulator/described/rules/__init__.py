"""What must hold between the fields of a job or profile.

all_rules           which plans are refused: asks all of the others; lists a new rule
data_parallel_rules, pipeline_rules, layer_split_rules, memory_rules, pool_rules
                    one subject each
profile_rules       what a hardware profile must keep
"""
