"""Program -> Timeline.

des                simulates streams, rendezvous and shared links on SimPy
replay             the bound without contention
fluid_network      how communications share links and ports
device             how they slow the computation beside them
chunked, chunk_algorithms    collectives chunk by chunk
dependencies       what each operation waits for, and deadlocks
instant, repetition          changes of one instant; parts that repeat
timeline           the result: what ran when
"""
