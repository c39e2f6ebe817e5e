"""The engine: one prefill per frame, actions first, language of many frames as one batch.

Deciding parts (request, kv_ledger, budget, scheduler) import no torch; kv_pool, sampler and
runner do the work; engine ties them into step(): schedule -> run -> commit.
"""
