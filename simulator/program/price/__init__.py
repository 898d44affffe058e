"""Seconds and bytes of what a rank runs.

piece_time, layer_time     one piece, and one layer, in each direction
layer_cost, stage_cost     time and memory of one layer, and of a run of layers
run_contents               what such a run consists of, and holds
unit_cost                  what is told of a layer, or of an end of the model
update_time                the optimizer's update
matrix_optimizers          what Muon, SOAP and GaLore multiply in it
host_work                  what the host spends on each kernel of a dense layer
host_pace, expert_waits    waits for the host that launches kernels or graphs, or asks for counts
hooked_weights             waits for hooks that gather every matrix by itself
schedule_costs, roofline   what searched schedules ask; kernels against the device's peaks
"""
