"""How does a cluster serve a model: requests, rolling batches, KV blocks?

One event per engine step, on the same models and hardware profiles as training.

======================  ==================================================
:mod:`.described`       what the user says of a deployment, and the file of a job
:mod:`.workload`        what the user says of the traffic
:mod:`.requests`        one request, and a workload as requests
:mod:`.block_cache`     the KV cache in blocks, with its prefix cache
:mod:`.radix`           the KV cache as a tree of prefixes
:mod:`.decodes`         all requests that make one token a step
:mod:`.schedulers`      which requests are in the next step, by engine
:mod:`.cache_memory`    how many tokens the cache holds
:mod:`.step_time`       how long a step takes
:mod:`.engine`          steps of one replica, one after another
:mod:`.cluster`         replicas behind a router
:mod:`.handovers`       prompts computed apart, whose keys and values cross the links
:mod:`.answers`         throughput, TTFT, TPOT, goodput, money
:mod:`.bearable_rate`   the largest rate, the fewest GPUs, the best split
:mod:`.launch`          command lines of engines, read and written
======================  ==================================================
"""
