"""What a layer is made of on one device, before anybody asks how long it takes.

pieces, block                       products, streams and exchanges, put together as a layer
eight_bit_casts                     kernels that scale and cast operands of 8-bit products
layer_kinds, layer_part             the kinds of layers, and what must be known of a part of one
attention_parts, core_attention, mlp, experts, model_ends    the parts
weighed_copies                      what eager kernels do that weigh copies of tokens in fp32
expert_loop                         what Python does that visits experts one by one
grouped_experts                     what eager code does around grouped products of experts
losses                              what each way to compute the loss keeps of the logits
tensors, model_totals               parameters of one part, and of the whole model with its FLOP
adapters                            which of them are trained, and what is added to adapt others
"""
