"""Which requests are in the next step? One file per engine, named as its users name it.

======================  ==================================================
:mod:`.scheduler`       what all have: queues, the batch of a step, tokens
:mod:`.vllm_v1`         vLLM's second engine: one token budget, chunked prefill
:mod:`.vllm_v0`         vLLM's first engine: prefill first
:mod:`.sglang`          SGLang: prefill first, radix cache, retraction
:mod:`.trtllm`          TensorRT-LLM: in-flight batches, with and without eviction
:mod:`.orca`            Orca: iteration-level batches, contiguous cache
:mod:`.static`          one batch until its last token
:mod:`.lmi`             DJL's rolling batch
:mod:`.fastgen`         DeepSpeed-FastGen: split and fuse
:mod:`.by_name`         all of them by name
======================  ==================================================
"""
