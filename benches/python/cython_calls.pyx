# cython: language_level=3, boundscheck=False, wraparound=False
"""Routes and completes one prompt over and over, without the GIL; `cython_calls.py` times it."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

cimport trunkline
from trunkline cimport TRUNKLINE_OK, TrunklineDecision

trunkline.import_trunkline()


def route_and_complete(uint64_t router, const uint32_t[::1] ids, int calls):
    """Return how many of the calls were refused."""
    cdef TrunklineDecision decision
    cdef int refused = 0
    cdef int call
    with nogil:
        for call in range(calls):
            if trunkline.route(router, &ids[0], ids.shape[0], &decision) != TRUNKLINE_OK:
                refused += 1
            if trunkline.complete(router, decision.id) != TRUNKLINE_OK:
                refused += 1
    return refused
