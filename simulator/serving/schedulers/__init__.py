"""Which requests are in the next step? One class per engine, named as its users name it.

======================  ==================================================
:mod:`.scheduler`       what all have: queues, the batch of a step, tokens
:mod:`.vllm`            vLLM's two engines; DeepSpeed-FastGen: split and fuse
:mod:`.sglang`          SGLang: prefill first, radix cache, retraction
:mod:`.reserving`       static batches, LMI, Orca and TensorRT-LLM
:mod:`.by_name`         all of them by name
======================  ==================================================
"""
